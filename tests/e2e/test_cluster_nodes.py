"""A cluster of three nodes: replicas are spread, and a node that falls silent or dies costs only what had begun there.

Each node has a network of its own (`ray_nodes`), so a cut connection is silent, as between machines.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.clusters import WAIT_S, ask, needs_ray, until
from tests.e2e.conftest import Server, serving
from tests.e2e.ray_nodes import Node, Nodes, needs_networks, nodes

pytestmark = [needs_ray, *needs_networks, pytest.mark.slow]

LONG = {"prompt": "a long one", "max_tokens": 200_000, "stream": True}
"""Its answer fills every buffer on its way many times over, so it has not ended before it is read."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


@pytest.fixture(scope="module")
def server(three: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One replica on each of two nodes. It is stopped before the nodes are."""
    folder = tmp_path_factory.mktemp("served")
    script = folder / "script.json"
    script.write_text(json.dumps(["short", {"when": "long", "text": "word " * 40_000}]))
    arguments = ["scripted", "--script", str(script), "--address", three.address, "--kv-type", "f16"]
    arguments += ["--replicas", "2", "--threads", "1", "--allow-unauthenticated"]
    environ = {name: three.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR")}
    log = folder / "log"
    with serving(*arguments, log=log, command=("cluster", "serve"), environ=environ, host="0.0.0.0") as running:
        until(lambda: num_ready(running) == 2)
        yield running
    for node in three.all:
        assert node.runs("raylet"), "the cluster was there before, and stays"
        for name in ("ray::ServeReplica", "stoker.assembly", "ray::ServeController", "ray::ProxyActor"):
            until(lambda node=node, name=name: not node.runs(name))
    assert "Traceback" not in log.read_text()


def replicas(server: Server) -> list[dict[str, Any]]:
    reply = httpx.get(f"{server.url}/health", trust_env=False, timeout=WAIT_S)
    return reply.json()["models"][0].get("replicas", [])


def num_ready(server: Server) -> int:
    return sum(replica["state"] == "ready" for replica in replicas(server))


def without_front(three: Nodes) -> Node:
    """A node whose loss costs an engine only."""
    return next(node for node in three.others if not node.runs("stoker:front"))


class Stream:
    """A long answer, of which little is read until `read_on`."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._is_wanted = True
        self._may_read_on = threading.Event()
        self.has_begun, self.has_ended = threading.Event(), threading.Event()
        self.last = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.has_begun.wait(WAIT_S)

    def _read(self) -> None:
        url = f"{self._url}/v1/completions"
        try:
            with httpx.stream("POST", url, json=LONG, trust_env=False, timeout=WAIT_S) as reply:
                for line in filter(None, reply.iter_lines()):
                    self.last = line
                    self.has_begun.set()
                    if not self._is_wanted:
                        break
                    self._may_read_on.wait(0.05)
        finally:
            self.has_ended.set()

    @property
    def crashed(self) -> bool:
        """It ended with the error of a lost engine."""
        return self.has_ended.is_set() and '"engine_crashed"' in self.last

    def read_on(self) -> None:
        """As fast as it comes."""
        self._may_read_on.set()

    def leave(self) -> None:
        self._is_wanted = False
        self.read_on()
        self._thread.join(WAIT_S)


def test_replicas_run_on_different_nodes(three: Nodes, server: Server) -> None:
    assert {replica["node"] for replica in replicas(server)} == {node.address for node in three.others}


def test_head_and_every_node_with_a_front_have_an_entrance(three: Nodes, server: Server) -> None:
    port = server.url.rpartition(":")[2]
    for node in [three.head, *(node for node in three.others if node.runs("stoker:front"))]:
        until(lambda url=f"http://{node.address}:{port}": ask(url, "short").status_code == 200)


def num_paused(server: Server) -> float:
    """Requests that no engine computes because their clients read too slowly."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=WAIT_S).text
    (found,) = re.findall(r"^stoker_requests_paused\{.*\} ([0-9.]+)$", text, re.M)
    return float(found)


def test_engine_stops_for_a_reader_that_is_slow(three: Nodes, server: Server) -> None:
    slow, fast = Stream(server), Stream(server)
    fast.read_on()
    until(lambda: num_paused(server) == 1)
    fast.leave()
    slow.leave()
    until(lambda: num_paused(server) == 0)
    until(lambda: all(replica.get("num_running", 0) == 0 for replica in replicas(server)))


def test_node_that_falls_silent_loses_what_had_begun_there(three: Nodes, server: Server) -> None:
    streams = [Stream(server) for _ in range(4)]
    with three.cut_off(without_front(three)), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
        assert [reply.status_code for reply in replies] == [200] * 16
        until(lambda: num_ready(server) == 1)
        lose_half(streams)
    revive(three)
    until(lambda: num_ready(server) == 2)
    until(lambda: all(replica.get("num_running", 0) == 0 for replica in replicas(server)))


def test_node_that_is_killed_is_replaced_by_one_that_joins(three: Nodes, server: Server) -> None:
    streams = [Stream(server) for _ in range(4)]
    without_front(three).kill()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
    assert [reply.status_code for reply in replies] == [200] * 16
    until(lambda: num_ready(server) == 1)
    lose_half(streams)
    revive(three)
    until(lambda: num_ready(server) == 2)
    assert {replica["node"] for replica in replicas(server)} == {node.address for node in three.others}


def lose_half(streams: list[Stream]) -> None:
    """Those of one engine of two end with an error, and the others go on."""
    for stream in streams:
        stream.read_on()
    until(lambda: sum(stream.crashed for stream in streams) == 2)
    for stream in streams:
        stream.leave()
    assert sum(stream.crashed for stream in streams) == 2


def revive(three: Nodes) -> None:
    """Starts nodes that are gone: Ray ends a node that was silent for too long."""
    for node in three.others:
        if not node.runs("raylet"):
            node.kill()
            three.start_node(node)
