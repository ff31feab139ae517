"""A cluster of three nodes: replicas are spread, and a node that falls silent or dies costs only what had begun there.

Each node has a network of its own (`ray_nodes`), so a cut connection is silent, as between machines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.clusters import (
    LIMIT_S,
    PATIENCE_S,
    WAIT_S,
    LongAnswer,
    ask,
    needs_ray,
    replicas,
    until,
    until_ready,
)
from tests.e2e.conftest import Server
from tests.e2e.ray_nodes import Node, Nodes, joining, needs_networks, nodes, served_by

pytestmark = [needs_ray, *needs_networks, pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running


@pytest.fixture(scope="module")
def server(three: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One replica on each of two nodes. It is stopped before the nodes are."""
    folder = tmp_path_factory.mktemp("served")
    with served_by(three, folder) as running:
        yield running
    for node in three.all:
        assert node.runs("raylet"), "the cluster was there before, and stays"
        for name in ("ray::ServeReplica", "stoker.assembly", "ray::ServeController", "ray::ProxyActor"):
            until(lambda node=node, name=name: not node.runs(name))
    assert "Traceback" not in (folder / "log").read_text()


def without_front(three: Nodes) -> Node:
    """A node whose loss costs an engine only."""
    return next(node for node in three.others if not node.runs("stoker:front"))


def engines(three: Nodes) -> set[int]:
    """The processes that compute."""
    return {process.pid for node in three.others for process in node.processes_of("stoker.assembly")}


def test_replicas_run_on_different_nodes(three: Nodes, server: Server) -> None:
    assert {replica["node"] for replica in replicas(server.url)} == {node.address for node in three.others}


def test_second_command_on_the_cluster_is_refused_and_disturbs_nothing(three: Nodes, server: Server) -> None:
    command = [sys.executable, "-m", "stoker", "cluster", "serve", "scripted", "--address", three.address]
    command += ["--kv-type", "f16", "--port", server.url.rpartition(":")[2]]
    before = engines(three)
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **joining(three)}, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, "served on this cluster already" in done.stderr) == (2, True), done.stderr
    assert ask(server.url, "short").status_code == 200
    until_ready(server.url, 2)  # on a busy machine, a replica may be silent for longer than a front waits
    assert engines(three) == before != set()


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
    # Sockets on the way hold up to 40 MB, which is more than a whole answer, unless each token brings more.
    slow, fast = LongAnswer(server.url, logprobs=20), LongAnswer(server.url)
    fast.read_on()
    until(lambda: num_paused(server) == 1)
    fast.leave()
    slow.leave()
    until(lambda: num_paused(server) == 0)
    until(lambda: all(replica.get("num_running", 0) == 0 for replica in replicas(server.url)))


def test_node_that_falls_silent_loses_what_had_begun_there(three: Nodes, server: Server) -> None:
    streams = [LongAnswer(server.url) for _ in range(4)]
    with three.cut_off(without_front(three)), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
        assert [reply.status_code for reply in replies] == [200] * 16
        until_ready(server.url, 1)
        lose_half(streams)
    revive(three)
    until_ready(server.url, 2)
    until(lambda: all(replica.get("num_running", 0) == 0 for replica in replicas(server.url)))


def test_node_that_is_killed_is_replaced_by_one_that_joins(three: Nodes, server: Server) -> None:
    streams = [LongAnswer(server.url) for _ in range(4)]
    without_front(three).kill()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: ask(server.url, f"short {number}"), range(16)))
    assert [reply.status_code for reply in replies] == [200] * 16
    until_ready(server.url, 1)
    lose_half(streams)
    revive(three)
    others = {node.address for node in three.others}
    until(lambda: {replica.get("node") for replica in replicas(server.url) if replica["state"] == "ready"} == others)


def lose_half(streams: list[LongAnswer]) -> None:
    """Those of one engine of two end with an error, and the others go on."""
    for stream in streams:
        stream.read_on()
    until(lambda: sum(stream.error == "engine_crashed" for stream in streams) == 2)
    for stream in streams:
        stream.leave()
    assert sum(stream.error == "engine_crashed" for stream in streams) == 2


def revive(three: Nodes) -> None:
    """Starts nodes that are gone: Ray ends a node that was silent for too long."""
    for node in three.others:
        if not node.runs("raylet"):
            node.kill()
            three.start_node(node)
