"""Parts of a cluster are killed under load: no request waits forever, and what had not begun is answered elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.clusters import (
    LIMIT_S,
    LONG_SCRIPT,
    WAIT_S,
    LongAnswer,
    actors,
    ask,
    cluster,
    controllers,
    engine_of,
    needs_ray,
    replicas,
    until,
    until_ready,
)
from tests.e2e.conftest import Server

pytestmark = [needs_ray, pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("faults")
    script = folder / "script.json"
    script.write_text(json.dumps(LONG_SCRIPT))
    arguments = ("scripted", "--script", str(script), "--replicas", "2", "--fronts", "2", "--threads", "1")
    with cluster(*arguments, log=folder / "log") as running:
        whole(running)
        yield running


def whole(server: Server) -> None:
    """Two replicas are ready. Serve starts processes for minutes on a busy machine."""
    until_ready(server.url, 2)


def counted(server: Server) -> dict[str, float]:
    """Requests that were answered, by the front that answered them."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=WAIT_S).text
    found: dict[str, float] = {}
    for front, value in re.findall(r'^stoker_requests_total\{.*front="([^"]+)".*\} ([0-9.]+)$', text, re.M):
        found[front] = found.get(front, 0.0) + float(value)
    return found


def test_any_front_tells_what_all_have_counted(server: Server) -> None:
    until(lambda: len(actors(server, "front")) == 2)
    for number in range(12):
        assert ask(server.url, f"short {number}").status_code == 200
    until(lambda: sum(counted(server).values()) == 12)


def others_are_answered(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
    assert [reply.status_code for reply in replies] == [200] * 16


def spread(server: Server) -> tuple[list[LongAnswer], set[int]]:
    """Long answers of both engines, and how many each writes. A front that just started knows one engine at first."""

    def running() -> list[int]:
        return [replica.get("num_running", 0) for replica in replicas(server.url)]

    streams = [LongAnswer(server.url) for _ in range(4)]
    until(lambda: sum(running()) == len(streams))
    while min(found := running()) == 0:
        assert len(streams) < 12, found
        streams.append(LongAnswer(server.url))
        until(lambda: sum(running()) == len(streams))
    return streams, set(found)


def those_of_one_are_lost(streams: list[LongAnswer], counts: set[int]) -> None:
    """The answers of one engine of two end with an error event, and the others go on."""

    def num_lost() -> int:
        return sum(stream.error == "engine_crashed" for stream in streams)

    for stream in streams:
        stream.read_on()
    until(lambda: num_lost() in counts)
    assert not any(stream.is_cut for stream in streams)
    for stream in streams:
        stream.leave()
    assert num_lost() in counts


def test_engine_that_is_killed_is_replaced_by_its_replica(server: Server) -> None:
    streams, counts = spread(server)
    replica = actors(server, "engine")[0]
    engine_of(replica).kill()
    others_are_answered(server)
    those_of_one_are_lost(streams, counts)
    whole(server)
    assert replica in actors(server, "engine")


def test_streams_of_a_replica_that_is_killed_end_with_an_error_and_others_are_answered(server: Server) -> None:
    streams, counts = spread(server)
    actors(server, "engine")[0].kill()
    others_are_answered(server)
    those_of_one_are_lost(streams, counts)
    whole(server)


def test_replica_that_falls_silent_is_given_up_and_taken_back_when_it_speaks(server: Server) -> None:
    streams, counts = spread(server)
    frozen = actors(server, "engine")[0]
    frozen.suspend()  # its connections stay open, and nothing comes
    try:
        others_are_answered(server)
        those_of_one_are_lost(streams, counts)
    finally:
        frozen.resume()
    whole(server)
    until(lambda: all(each.get("num_running", 0) == 0 for each in replicas(server.url)))


def test_answers_go_on_without_the_controller_which_comes_back(server: Server) -> None:
    stream = LongAnswer(server.url)
    (before,) = controllers(server)
    before.kill()
    others_are_answered(server)
    until(lambda: len(controllers(server)) == 1 and before not in controllers(server))
    others_are_answered(server)
    stream.read_on()
    actors(server, "engine")[0].kill()  # the new controller replaces it
    whole(server)
    stream.leave()


def test_front_that_is_killed_cuts_its_streams_and_the_other_one_answers(server: Server) -> None:
    until(lambda: len(actors(server, "front")) == 2)
    stream = LongAnswer(server.url)
    actors(server, "front")[0].kill()  # which of the two has the stream is not told
    until(lambda: ask(server.url, "short").status_code == 200)
    stream.leave()
    until(lambda: len(actors(server, "front")) == 2)
    whole(server)
    until(lambda: all(each.get("num_running", 0) == 0 for each in replicas(server.url)))
