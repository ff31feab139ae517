"""The stage clock's sums, and that an engine's marks leave no part of a step out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.bench.profile import STAGES, StageClock, profile_engine
from stoker.core.batch import Batch
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.core.token_budget import MIN_CHUNK, TokenBudget
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Submit
from tests.harness import loaded


def test_the_time_since_the_last_mark_belongs_to_the_stage() -> None:
    times: Iterator[float] = iter([0.0, 10.0, 11.0, 13.0, 16.0])
    clock = StageClock(lambda: next(times))
    clock.begin()
    clock.mark("schedule")
    clock.mark("forward")
    clock.mark("schedule")
    spent = clock.take()
    assert (spent["schedule"], spent["forward"], spent["sample"]) == (4.0, 2.0, 0.0)


def test_time_spent_in_the_backend_is_forward_s_alone() -> None:
    """The clock moves in the forward pass and nowhere else."""
    now_s = 0.0

    def pass_time(_: Batch) -> None:
        nonlocal now_s
        now_s += 3.0

    clock = StageClock(lambda: now_s)
    info = scripted_info(num_slots=2)
    backend = ScriptedBackend(info, before_forward=pass_time)
    engine = Engine(loaded(backend), SchedulerConfig(max_running=2), mark=clock.mark)
    engine.add(engine.admit(Submit("a", "hello", SamplingParams(max_tokens=4))))
    clock.begin()
    assert engine.step()
    assert clock.take() == dict.fromkeys(STAGES, 0.0) | {"forward": 3.0}
    engine.close()


def test_marks_of_a_step_name_its_stages_in_their_order() -> None:
    marks: list[str] = []
    backend = ScriptedBackend(scripted_info())
    engine = Engine(loaded(backend), SchedulerConfig(max_running=2), mark=marks.append)
    sampling = SamplingParams(max_tokens=4, logit_bias={5: 1.0})
    engine.add(engine.admit(Submit("a", "hello", sampling)))
    engine.step()
    assert marks == ["schedule", "forward", "sample", "mask", "sample", "schedule", "detokenize", "publish"]


def test_every_batch_size_is_profiled_with_every_way_of_sampling() -> None:
    card, profiles = profile_engine(EngineConfig(model="scripted", backend="scripted"), batch_sizes=(1, 2))
    found = list(profiles)
    assert card.backend == "scripted"
    assert [(p.sampling, p.batch_size) for p in found] == [
        (name, size) for size in (1, 2) for name in ("greedy", "sampled", "penalised", "dry")
    ]
    for each in found:
        assert 0 < each.overhead_share < 1
        assert (each.stage_s["mask"] > 0) == (each.sampling == "dry"), "other edits are part of choosing"
        assert each.step_s == pytest.approx(sum(each.stage_s.values()))


def test_requests_run_together_also_where_prompts_are_computed_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    def least(self: TokenBudget, num_decodes: int, **_: object) -> int:
        return MIN_CHUNK

    monkeypatch.setattr(TokenBudget, "prompt_tokens", least)
    _, profiles = profile_engine(EngineConfig(model="scripted", backend="scripted"), batch_sizes=(16,))
    assert next(profiles).batch_size == 16
