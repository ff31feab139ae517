"""Traces of requests: which step made each token, what was drafted, and where the cached prompt was found."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from stoker.backends.scripted import ScriptedBackend
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.inbox import merge
from stoker.engine.protocol import Output, Submit
from stoker.engine.question_messages import Glimpse, Look
from stoker.engine.traces import Trace
from tests.harness import loaded
from tests.unit.engine.test_drafts import sing
from tests.unit.engine.test_tiers import PROMPT, Disk, answer, build


def make_engine(max_draft: int = 0) -> Engine:
    backend = ScriptedBackend(next_token=sing)
    return Engine(loaded(backend), SchedulerConfig(max_running=1, max_draft=max_draft), clock=count(1.0, 1e-3).__next__)


def traced(engine: Engine, request_id: str = "a", *, traces: bool = True, max_tokens: int = 60) -> None:
    engine.add(
        engine.admit(Submit(request_id, "ab", SamplingParams(temperature=0, max_tokens=max_tokens), traces=traces))
    )


def run(engine: Engine) -> list[Output]:
    found: list[Output] = []
    while engine.has_work:
        found += [event for event in engine.step() if isinstance(event, Output)]
    return found


def trace_of(output: Output) -> Trace:
    assert output.trace is not None
    return output.trace


def test_each_token_names_the_step_that_made_it():
    engine = make_engine()
    engine.answer(Look())
    traced(engine)
    outputs = run(engine)
    glimpse = engine.answer(Look(since={0: 0}))
    assert isinstance(glimpse, Glimpse)
    steps = [step for output in outputs for step in trace_of(output).steps]
    assert steps == [record.step_id for record in glimpse.engines[0].steps]
    assert len(steps) == sum(len(output.token_ids) for output in outputs) == 60
    assert not any(drafted for output in outputs for drafted in trace_of(output).drafted)


def test_drafted_tokens_are_marked_and_come_from_fewer_steps():
    engine = make_engine(max_draft=8)
    traced(engine, max_tokens=200)
    outputs = run(engine)
    timing = outputs[-1].timing
    assert timing is not None
    assert timing.num_accepted > 20
    drafted = [each for output in outputs for each in trace_of(output).drafted]
    steps = [step for output in outputs for step in trace_of(output).steps]
    assert sum(drafted) == timing.num_accepted
    assert len(set(steps)) == len(steps) - sum(drafted), "each step makes one token of its own"
    assert len(steps) == sum(len(output.token_ids) for output in outputs)


def test_the_last_output_says_what_became_of_the_request():
    engine = make_engine()
    traced(engine, "first")
    traced(engine, "second")
    outputs = run(engine)
    ends = [end for output in outputs if (end := trace_of(output).end) is not None]
    assert [output.request_id for output in outputs if trace_of(output).end] == ["first", "second"]
    assert [(end.slot, end.cached, end.num_preempted) for end in ends] == [(0, (0, 0, 0), 0), (1, (2, 0, 0), 0)]
    assert 0 < ends[0].queue_s < ends[1].queue_s


def test_who_does_not_ask_is_told_nothing():
    engine = make_engine(max_draft=8)
    traced(engine, "asks")
    traced(engine, "asks not", traces=False)
    assert {output.request_id for output in run(engine) if output.trace is not None} == {"asks"}


def test_merged_outputs_have_the_trace_of_all_of_them():
    engine = make_engine(max_draft=8)
    traced(engine)
    outputs = run(engine)
    whole = trace_of(merge(outputs))
    assert whole.steps == [step for output in outputs for step in trace_of(output).steps]
    assert len(whole.drafted) == len(whole.steps)
    assert whole.end == trace_of(outputs[-1]).end


def test_it_says_what_came_from_memory_and_what_from_disk(tmp_path: Path):
    def cached_from(engine: Engine, request_id: str) -> tuple[int, int, int]:
        engine.add(engine.admit(Submit(request_id, PROMPT, SamplingParams(temperature=0, max_tokens=2), traces=True)))
        last: Output | None = None
        while engine.has_work:
            for event in engine.step():
                last = event if isinstance(event, Output) else last
        assert last is not None
        end = trace_of(last).end
        assert end is not None
        return end.cached

    first = build(Disk(tmp_path))
    assert cached_from(first, "first") == (0, 0, 0)
    answer(first, "other", [(index * 7 + 1) % 250 for index in range(500)])
    assert cached_from(first, "restored") == (0, 159, 0)
    first.close()
    disk = Disk(tmp_path)
    disk.may_read.set()
    second = build(disk)
    assert cached_from(second, "read") == (0, 0, 159)
    second.close()
