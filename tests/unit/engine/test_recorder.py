"""What an engine tells its watchers: steps, moments, sequences and the pool; and that nothing is written down else."""

from __future__ import annotations

from typing import Any

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.engine.question_messages import Glimpse, Look
from stoker.engine.recorder import IDLE_S
from stoker.engine.view import EngineView
from tests.harness import loaded


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_engine(clock: Clock, kv_tokens: int = 2048, **info: Any) -> Engine:
    backend = ScriptedBackend(scripted_info(kv_tokens=kv_tokens, **info), before_forward=lambda batch: tick(clock))
    return Engine(loaded(backend), SchedulerConfig(max_running=4, max_waiting=8), clock=clock)


def tick(clock: Clock) -> None:
    clock.now += 0.25


def add(engine: Engine, request_id: str, prompt: str, max_tokens: int = 4, *, reports_progress: bool = False) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    submit = Submit(request_id, prompt, sampling, client_key="me", reports_progress=reports_progress)
    engine.add(engine.admit(submit))


def look(engine: Engine, since: int = 0) -> EngineView:
    glimpse = engine.answer(Look(since={0: since}))
    assert isinstance(glimpse, Glimpse)
    return glimpse.engines[0]


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def test_steps_and_moments_are_told_once_each():
    clock = Clock()
    engine = make_engine(clock)
    first = look(engine)
    assert (first.steps, first.moments, first.sequences) == ([], [], [])
    add(engine, "a", "twelve chars", max_tokens=3)
    engine.step()
    view = look(engine, first.serial)
    (step,) = view.steps
    assert (step.num_prompt, step.num_decodes, step.members) == (13, 0, [(0, 13)])
    assert (step.step_ms, step.forward_ms, step.sample_ms) == (250.0, 250.0, 0.0)
    assert [(moment.kind, moment.count) for moment in view.moments] == [("arrived", 13), ("begun", 0), ("first", 0)]
    (state,) = view.sequences
    assert (state.request_id, state.client_key, state.state, state.slot) == ("a", "me", "decode", 0)
    assert (state.num_prompt, state.num_computed, state.num_completion) == (13, 13, 1)
    run(engine)
    later = look(engine, view.serial)
    assert [step.num_decodes for step in later.steps] == [1, 1]
    assert [(moment.kind, moment.count) for moment in later.moments] == [("finished", 3)]
    assert look(engine, later.serial).steps == []
    serials = [record.serial for record in (*view.steps, *view.moments, *later.steps, *later.moments)]
    assert sorted(serials) == list(range(1, later.serial + 1))


def test_a_cache_hit_and_an_abort_are_moments():
    engine = make_engine(Clock())
    look(engine)
    add(engine, "a", "the same beginning and A")
    run(engine)
    add(engine, "b", "the same beginning and B")
    engine.step()
    engine.abort("b")
    moments = [(moment.kind, moment.request_id, moment.count) for moment in look(engine).moments][-4:]
    assert moments == [("arrived", "b", 25), ("begun", "b", 24), ("first", "b", 0), ("ended", "b", 0)]


def test_evictions_and_preemptions_are_moments():
    engine = make_engine(Clock(), kv_tokens=60, context_size=60)
    look(engine)
    for number in range(3):
        add(engine, f"r{number}", f"{number} quite different prompts", max_tokens=20)
    while engine.has_work:
        engine.step()
        look(engine)  # else it would stop after some seconds
    view = look(engine)
    assert {"evicted", "preempted"} <= {moment.kind for moment in view.moments}
    assert view.stats.num_preemptions == sum(each.count for each in view.moments if each.kind == "preempted")
    assert view.stats.pool_evicted_tokens == sum(each.count for each in view.moments if each.kind == "evicted")


def test_nothing_is_written_down_unless_it_is_watched():
    clock = Clock()
    engine = make_engine(clock)
    add(engine, "a", "prompt")
    run(engine)
    view = look(engine)
    assert (view.steps, view.moments, view.serial) == ([], [], 0)
    clock.now += IDLE_S + 1
    add(engine, "b", "other")
    run(engine)
    again = look(engine)
    assert again.recorder != view.recorder, "there was no watcher for a while"
    assert again.steps == []


def test_who_knows_a_newer_serial_of_another_recorder_is_told_everything():
    engine = make_engine(Clock())
    look(engine)
    add(engine, "a", "prompt")
    run(engine)
    assert look(engine, since=10**6).steps == look(engine).steps != []


def test_progress_is_told_before_the_first_token_and_only_to_who_asks():
    engine = make_engine(Clock(), max_batch_tokens=32)
    add(engine, "a", "x" * 100, max_tokens=2, reports_progress=True)
    add(engine, "b", "y" * 50, max_tokens=2)
    outputs = [event for event in iter(lambda: engine.step() if engine.has_work else None, None) for event in event]
    mine = [event for event in outputs if isinstance(event, Output) and event.request_id == "a"]
    reports = [event.progress for event in mine if event.progress is not None]
    computed = [report.num_computed for report in reports]
    assert computed == sorted(set(computed))
    assert computed[-1] == 101
    assert len(computed) >= 4
    assert [event.progress is None for event in mine] == [False] * len(reports) + [True] * 2
    assert all(report.elapsed_s > 0 for report in reports)
    assert all(event.progress is None for event in outputs if isinstance(event, Output) and event.request_id == "b")
