"""The queue is bounded by the prompt tokens that wait in it, not only by the requests."""

from __future__ import annotations

import pytest

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Submit
from stoker.engine.worker import EngineWorker
from stoker.errors import Overloaded
from tests.harness import loaded
from tests.unit.engine.test_worker import ENDLESS, Gate, Sink
from tests.waiting import BOUND_S

LIMIT = 100


def prompt(request_id: str, num_tokens: int, group: str = "") -> Submit:
    return Submit(request_id, [65] * num_tokens, ENDLESS, group=group)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def worker(gate: Gate):
    """One runs, and is held in its first step; whoever comes then waits."""
    backend = ScriptedBackend(scripted_info(context_size=1000, kv_tokens=2000), before_forward=gate)
    engine = Engine(loaded(backend), SchedulerConfig(max_running=1, max_waiting=20))
    worker = EngineWorker(engine, Sink(), max_waiting_tokens=LIMIT)
    worker.submit(prompt("running", 500))
    assert gate.entered.wait(BOUND_S)
    yield worker
    gate.opened.set()
    assert worker.close(BOUND_S)


def test_one_token_too_many_is_overloaded_until_somebody_leaves(worker: EngineWorker):
    worker.submit(prompt("a", 60))
    worker.submit(prompt("b", 40))
    with pytest.raises(Overloaded, match="101 prompt tokens") as caught:
        worker.submit(prompt("c", 1))
    assert 1 <= float(caught.value.fields["retry_after_s"] or 0) <= 60
    worker.abort("b")
    worker.submit(prompt("c", 1))


def test_a_prompt_longer_than_the_bound_may_wait_alone(worker: EngineWorker):
    worker.submit(prompt("long", 900))
    with pytest.raises(Overloaded):
        worker.submit(prompt("short", 1))


def test_answers_to_one_prompt_count_once(worker: EngineWorker):
    for index in range(4):
        worker.submit(prompt(f"g{index}", 90, group="g"))
    worker.submit(prompt("a", 10))
    with pytest.raises(Overloaded):
        worker.submit(prompt("b", 1))


def test_those_not_queued_yet_count_too_and_leave_nothing_behind(worker: EngineWorker):
    for request_id in ("a", "b"):
        worker.reserve(request_id)
    stream = worker.admit(prompt("a", 90))
    with pytest.raises(Overloaded):
        worker.admit(prompt("b", 20))
    worker.enqueue(stream)
    worker.abort("a")
    worker.submit(prompt("b", 100))
    assert worker._unqueued == {}
