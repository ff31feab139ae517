"""`stoker serve --replicas`: one model in two engines, their memory, and what clients see when one is killed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from psutil import Process

from tests.e2e.conftest import Server, serving
from tests.e2e.test_server_survives import health
from tests.waiting import BOUND_S, wait_until

pytestmark = pytest.mark.slow

MAX_SECOND_COPY = 0.05
"""Of the weights' memory: what a second engine may add to it."""


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("replicas") / "log"
    with serving(str(smollm2_path), "--replicas", "2", "--ctx-size", "512", "--cache-ram", "0", log=log) as server:
        wait_until(lambda: num_ready(server.url) == 2)
        yield server


def replicas(url: str) -> list[dict[str, Any]]:
    return health(url).json()["models"][0].get("replicas", [])


def num_ready(url: str) -> int:
    return sum(replica["state"] == "ready" for replica in replicas(url))


def engines(server: Server) -> list[Process]:
    return [child for child in Process(server.pid).children(recursive=True) if "stoker.assembly" in child.cmdline()]


def ask(url: str, prompt: str, max_tokens: int = 8) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    reply = httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=BOUND_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(url: str, prompt: str) -> AbstractContextManager[httpx.Response]:
    body = {"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": True, "temperature": 0}
    return httpx.stream("POST", f"{url}/v1/completions", json=body, trust_env=False, timeout=BOUND_S)


def test_conversations_find_their_prefix_again(server: Server):
    stems = [f"The {animal} went to the market and bought apples, pears and plums. " * 8 for animal in ("cat", "dog")]
    first = [ask(server.url, stem) for stem in stems]
    assert [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in first] == [0, 0]
    assert all(replica["kv_retained"] > 0 for replica in beaten(server.url)), "each has one of them"
    again = [ask(server.url, stem + reply["choices"][0]["text"]) for stem, reply in zip(stems, first, strict=True)]
    for reply in again:
        usage = reply["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] * 0.9


def beaten(url: str) -> list[dict[str, Any]]:
    """The replicas, once their heartbeats have told what was done so far."""
    wait_until(lambda: all(replica.get("kv_retained", 0) > 0 for replica in replicas(url)))
    return replicas(url)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="procfs says how much memory is shared")
def test_a_second_engine_has_no_weights_of_its_own(server: Server):
    fill = count()
    wait_until(lambda: bool(ask(server.url, f"{next(fill)} is a number.")) and all_touched(server))
    maps = [weights_of(engine) for engine in engines(server)]
    (one, _), size = maps, max(rss for rss, _ in maps)
    assert one[0] == size
    assert sum(pss for _, pss in maps) < size * (1 + MAX_SECOND_COPY)
    for engine in engines(server):
        rollup = Path(f"/proc/{engine.pid}/smaps_rollup").read_text()
        assert kib(rollup, "Pss_Anon") < size, "no room for a private copy, with Python, KV and all"


def all_touched(server: Server) -> bool:
    return len({rss for rss, _ in map(weights_of, engines(server))}) == 1


def weights_of(engine: Process) -> tuple[int, int]:
    """KiB of the packed weights in this process, and its part of them where several processes have the same."""
    smaps = Path(f"/proc/{engine.pid}/smaps").read_text()
    (mapping,) = re.findall(r"^\S+ r--s \S+ \S+ \S+ +\S+\.stoker\n(?:[A-Z].*\n)+", smaps, re.MULTILINE)
    return kib(mapping, "Rss"), kib(mapping, "Pss")


def kib(text: str, name: str) -> int:
    (value,) = re.findall(rf"^{name}: +(\d+) kB$", text, re.MULTILINE)
    return int(value)


def test_a_killed_engine_leaves_the_other_at_work(server: Server):
    url = server.url
    statuses: set[int] = set()

    def is_back() -> bool:
        statuses.add(health(url).status_code)
        return health(url).json()["models"][0]["num_restarts"] == 1 and num_ready(url) == 2

    with ExitStack() as open_streams:
        streams = [open_streams.enter_context(stream(url, f"{number} little ducks")) for number in range(4)]
        parts = [response.iter_bytes() for response in streams]
        begun = [next(part) for part in parts]
        engines(server)[0].kill()
        replies = [ask(url, f"{number} and one is") for number in range(4)]
        received = [first + b"".join(rest) for first, rest in zip(begun, parts, strict=True)]
    assert all(reply["usage"]["completion_tokens"] for reply in replies)
    wait_until(is_back)
    assert statuses == {200}
    assert sorted(b'"code":"engine_crashed"' in text for text in received) == [False, False, True, True]
    assert sorted(b"[DONE]" in text for text in received) == [False, False, True, True]
