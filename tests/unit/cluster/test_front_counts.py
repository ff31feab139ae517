"""Whichever front is scraped tells what all fronts have counted, each by its name, and what engines say once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from stoker.cluster import front_counts
from stoker.cluster.front_counts import FrontCounts
from stoker.runtime.config import RegistryConfig
from stoker.runtime.registry import Registry
from stoker.runtime.request_metrics import RequestMetrics
from stoker.runtime.served import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from tests.unit.runtime.fake_replica import FakeReplica
from tests.waiting import BOUND_S, run


class Front:
    """A front with a model of which it has answered some requests, beside others."""

    def __init__(self, name: str, num_answered: int) -> None:
        self.now = 0.0
        self.num_asked = 0
        self.error: Exception | None = None
        self.all: list[Front] = [self]
        metrics = RequestMetrics()
        for _ in range(num_answered):
            metrics.watch("somebody").close()
            metrics.ttft_s.observe(0.5)
        self.registry = Registry([], RegistryConfig())
        fake = FakeReplica(0, None)
        fake.become_ready()
        self.registry.adopt(ServedModel(("m",), fake, metrics=metrics))
        self.counts = FrontCounts(name, self.registry, self._ask_all, lambda: self.now)

    async def _ask_all(self) -> Sequence[bytes]:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        return [front.counts.told() for front in self.all]

    def scraped(self) -> dict[tuple[str, str], float]:
        """Values by the names of samples and fronts."""
        app = create_app(self.registry, ServerConfig(), parts=[self.counts.fronts, self.counts.responses])
        reply = TestClient(app, base_url="http://localhost").get("/metrics")
        assert reply.status_code == 200
        families = text_string_to_metric_families(reply.text)
        return {(s.name, s.labels.get("front", "")): s.value for family in families for s in family.samples}


def two() -> tuple[Front, Front]:
    fronts = Front("a", 3), Front("b", 4)
    for front in fronts:
        front.all = list(fronts)
    return fronts


def test_every_front_tells_the_same_of_all() -> None:
    for front in two():
        found = front.scraped()
        assert [found["stoker_requests_total", name] for name in "ab"] == [3.0, 4.0]
        assert [found["stoker_time_to_first_token_seconds_count", name] for name in "ab"] == [3.0, 4.0]
        assert ("stoker_requests_total", "") not in found
        assert found["stoker_model_ready", ""] == 1.0, "what a model is, each front knows alike"
        assert found["vllm:request_success_total", ""] == 7.0, "under other names they are added up"


def test_single_front_has_no_name() -> None:
    found = Front("", 3).scraped()
    assert found["stoker_requests_total", ""] == 3.0


@pytest.mark.parametrize("error", [TimeoutError("late"), RuntimeError("gone"), OSError("refused")])
def test_fronts_that_do_not_answer_are_missing(error: Exception) -> None:
    first, _ = two()
    first.error = error
    found = first.scraped()
    assert found["stoker_requests_total", "a"] == 3.0
    assert ("stoker_requests_total", "b") not in found


def test_front_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_counts, "ASK_S", 0.01)
    front = Front("a", 1)

    async def never() -> Sequence[bytes]:
        await asyncio.Event().wait()
        raise AssertionError

    front.counts = FrontCounts("a", front.registry, never)
    assert asyncio.run(asyncio.wait_for(front.counts.fronts.ask(), BOUND_S)) == {}


def test_scrapes_that_follow_each_other_ask_once() -> None:
    first, _ = two()

    async def test() -> None:
        await asyncio.gather(*(first.counts.fronts.ask() for _ in range(5)))
        await first.counts.fronts.ask()
        assert first.num_asked == 1
        first.now += front_counts.FRESH_S
        assert set(await first.counts.fronts.ask()) == {"b"}
        assert first.num_asked == 2

    run(test())
