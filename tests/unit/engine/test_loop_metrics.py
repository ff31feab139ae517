"""The engine's own durations: steps, the queue, prompts; and that nobody who has left stays in the books."""

from __future__ import annotations

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.core.batch import Batch
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit, Timing
from tests.harness import loaded


class Clock:
    """Every forward pass takes one second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def forward(self, batch: Batch) -> None:
        self.now += 1.0


def build(clock: Clock) -> Engine:
    backend = ScriptedBackend(scripted_info(), before_forward=clock.forward)
    return Engine(loaded(backend), SchedulerConfig(max_running=1), clock=clock)


def add(engine: Engine, request_id: str, **fields: object) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    engine.add(engine.admit(Submit(request_id, [65, 66], sampling, **fields)))  # type: ignore[arg-type]


def test_queue_prompt_and_step_are_timed():
    clock = Clock()
    engine = build(clock)
    add(engine, "first")
    add(engine, "second")
    outputs = [event for _ in range(6) for event in engine.step() if isinstance(event, Output)]
    ends = [Timing(1.0, 2.0, queue_s=0.0), Timing(1.0, 2.0, queue_s=3.0)]
    assert [output.timing for output in outputs] == [None, None, ends[0], None, None, ends[1]]
    beat = engine.stats()
    assert (beat.step_s.num_values, beat.step_s.total) == (6, 6.0)
    assert (beat.queue_s.num_values, beat.queue_s.total) == (2, 3.0), "the second one waited for three steps"
    assert (beat.prefill_s.num_values, beat.prefill_s.total) == (2, 2.0)
    assert (beat.running_s.num_values, beat.running_s.total) == (2, 6.0)
    assert (beat.step_tokens.num_values, beat.step_tokens.total) == (6, (2 + 1 + 1) + (1 + 1 + 1)), "half is cached"
    assert beat.num_step_sequences == 6


def test_who_leaves_early_is_forgotten():
    clock = Clock()
    engine = build(clock)
    add(engine, "runs")
    add(engine, "late", timeout_s=0.5)
    add(engine, "waits")
    engine.step()
    engine.abort("waits")
    engine.abort("runs")
    engine.step()
    assert not engine.has_work
    assert engine._metrics._queued == {}
    assert engine._metrics._begun == {}
    assert engine._metrics._running == {}
    assert engine.stats().running_s.num_values == 0


def test_the_warm_up_is_not_counted():
    engine = build(Clock())
    engine.warm_up()
    assert engine.stats().step_s.num_values == 0
