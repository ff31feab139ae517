"""Parts of a cluster are killed under load: no request waits forever, and what had not begun is answered elsewhere."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.clusters import WAIT_S, actors, ask, cluster, engine_of, needs_ray
from tests.e2e.conftest import Server

pytestmark = [needs_ray, pytest.mark.slow]

LONG = {"prompt": "a long one", "max_tokens": 30_000, "stream": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("faults")
    script = folder / "script.json"
    script.write_text(json.dumps(["short", {"when": "long", "text": "word " * 6000}]))
    arguments = ("scripted", "--script", str(script), "--replicas", "2", "--fronts", "2", "--threads", "1")
    with cluster(*arguments, log=folder / "log") as running:
        whole(running)
        yield running


def model(server: Server) -> dict[str, Any]:
    reply = httpx.get(f"{server.url}/health", trust_env=False, timeout=WAIT_S)
    return reply.json()["models"][0]


def whole(server: Server) -> None:
    """Two replicas are ready. Serve starts processes for minutes on a busy machine."""
    patiently(lambda: sum(each["state"] == "ready" for each in model(server).get("replicas", [])) == 2)


def patiently(is_true: Any) -> None:
    deadline = time.monotonic() + 3 * WAIT_S
    while True:
        try:
            if is_true():
                return
        except (httpx.TransportError, KeyError, ValueError):
            pass  # a front is being replaced
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Stream:
    """A long answer that is read in the background until it ends in whatever way."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self.has_begun = threading.Event()
        self.has_ended = threading.Event()
        self.lines: list[str] = []
        self.is_cut = False
        self._is_wanted = True
        threading.Thread(target=self._read, daemon=True).start()
        assert self.has_begun.wait(WAIT_S)

    def _read(self) -> None:
        try:
            with httpx.stream(
                "POST", f"{self._url}/v1/completions", json=LONG, trust_env=False, timeout=WAIT_S
            ) as reply:
                for line in reply.iter_lines():
                    self.lines.append(line)
                    self.has_begun.set()
                    if not self._is_wanted:
                        break
        except httpx.TransportError:
            self.is_cut = True
        self.has_ended.set()

    def leave(self) -> None:
        """As a client that has read enough."""
        self._is_wanted = False
        assert self.has_ended.wait(WAIT_S)

    @property
    def error(self) -> str | None:
        """The code of the event that ended it early."""
        found = [line for line in self.lines if '"error"' in line]
        return json.loads(found[-1].removeprefix("data: "))["error"]["code"] if found else None


def counted(server: Server) -> dict[str, float]:
    """Requests that were answered, by the front that answered them."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=WAIT_S).text
    found: dict[str, float] = {}
    for front, value in re.findall(r'^stoker_requests_total\{.*front="([^"]+)".*\} ([0-9.]+)$', text, re.M):
        found[front] = found.get(front, 0.0) + float(value)
    return found


def test_any_front_tells_what_all_have_counted(server: Server) -> None:
    patiently(lambda: len(actors(server, "front")) == 2)
    for number in range(12):
        assert ask(server.url, f"short {number}").status_code == 200
    patiently(lambda: sum(counted(server).values()) == 12)


def test_engine_that_is_killed_is_replaced_by_its_replica(server: Server) -> None:
    streams = [Stream(server) for _ in range(4)]
    engine_of(actors(server, "engine")[0]).kill()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
    assert [reply.status_code for reply in replies] == [200] * 16
    patiently(lambda: any(stream.has_ended.is_set() for stream in streams))
    ended = [stream.error for stream in streams if stream.error]
    assert set(ended) == {"engine_crashed"}
    for stream in streams:
        stream.leave()
    whole(server)


def test_streams_of_a_replica_that_is_killed_end_with_an_error_and_others_are_answered(server: Server) -> None:
    streams = [Stream(server) for _ in range(4)]
    actors(server, "engine")[0].kill()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
    assert [reply.status_code for reply in replies] == [200] * 16
    patiently(lambda: any(stream.error == "engine_crashed" for stream in streams))
    assert not any(stream.is_cut for stream in streams)
    for stream in streams:
        stream.leave()
    whole(server)


def test_front_that_is_killed_cuts_its_streams_and_the_other_one_answers(server: Server) -> None:
    patiently(lambda: len(actors(server, "front")) == 2)
    stream = Stream(server)
    actors(server, "front")[0].kill()  # which of the two has the stream is not told
    patiently(lambda: ask(server.url, "short").status_code == 200)
    stream.leave()
    patiently(lambda: len(actors(server, "front")) == 2)
    whole(server)
    patiently(lambda: all(each.get("num_running", 0) == 0 for each in model(server)["replicas"]))
