"""A cluster whose nodes are far apart: frames take 20 ms and overtake each other, and one of a hundred is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e import slow_link
from tests.e2e.clusters import LIMIT_S, READABLE, LongAnswer, ask, needs_ray, replicas, until
from tests.e2e.ray_nodes import needs_networks, nodes, served_by

pytestmark = [
    needs_ray,
    *needs_networks,
    pytest.mark.skipif(not slow_link.can_be_made(), reason="TAP devices cannot be made here"),
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S),
]


def test_no_answer_and_no_replica_is_lost(tmp_path: Path) -> None:
    with nodes(tmp_path, quality=slow_link.Quality()) as slow, served_by(slow, tmp_path) as running:
        streams = [LongAnswer(running.url, READABLE) for _ in range(4)]
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda number: ask(running.url, f"short {number}"), range(100)))
        assert [reply.status_code for reply in replies] == [200] * 100
        assert len({reply.json()["choices"][0]["text"] for reply in replies}) == 1
        streams[0].leave()
        assert streams[1].end() == "data: [DONE]"
        for stream in streams[2:]:
            stream.leave()
        until(lambda: all(replica.get("num_running", 0) == 0 for replica in replicas(running.url)))
        assert all((replica["state"], replica["num_restarts"]) == ("ready", 0) for replica in replicas(running.url))
        assert all(cable.num_lost > 10 for cable in slow.cables)
