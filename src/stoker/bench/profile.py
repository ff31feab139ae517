"""Where a step's time goes: an engine in this process, decodes only, all of them running. No thread and no HTTP.

`forward` is the backend's computation; everything else is overhead. `publish` contains the encoding of the frame that
would cross to the server's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, get_args

import msgspec

from stoker.bench.prompts import Prompts
from stoker.core.params import SamplingParams
from stoker.core.stages import Stage
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Event, Submit
from stoker.errors import ResourceExhausted
from stoker.lazy import lazy_module

if TYPE_CHECKING:
    from stoker import assembly
    from stoker.models.progress import Progress
else:
    assembly = lazy_module("stoker.assembly")  # with all backends

BATCH_SIZES = (1, 8, 16)
TARGET_SHARE = 0.05
"""At batch 8, of a step, beside the forward pass."""
STAGES: tuple[Stage, ...] = get_args(Stage)

_NUM_WARM_UP, _NUM_STEPS = 4, 24
_SLACK = 4
"""Tokens for each request of a batch that the first may be ahead of the last, whose prompt is computed later."""
_MAX_ATTEMPTS = 5
"""On a busy machine steps look expensive, and prompts get so small a part of them that the last comes too late."""
_PROMPT_WORDS = 24
_CTX_SIZE = 256
_SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(seed=1),
    "penalised": SamplingParams(seed=1, repetition_penalty=1.1, logit_bias={0: -1.0}),
    "dry": SamplingParams(seed=1, dry_multiplier=0.8, dry_allowed_length=1),
}
"""`sampled` is what a request gets that asks for nothing; `dry` shows the masks: all others are part of choosing."""


class StageClock:
    """Adds up the time of each stage of one step; `mark` is what an engine calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last_s = clock()
        self._spent_s = dict.fromkeys(STAGES, 0.0)

    def begin(self) -> None:
        """A step begins."""
        self._spent_s = dict.fromkeys(STAGES, 0.0)
        self._last_s = self._clock()

    def mark(self, stage: Stage) -> None:
        """See `core.stages.Mark`."""
        now_s = self._clock()
        self._spent_s[stage] += now_s - self._last_s
        self._last_s = now_s

    def take(self) -> dict[Stage, float]:
        """Seconds in each stage since `begin`."""
        return self._spent_s


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One batch size with one way of sampling: medians over the steps, in seconds."""

    sampling: str
    batch_size: int
    stage_s: dict[Stage, float]
    overhead_share: float
    """What is not forward, of the whole step; the median over the steps, 0 … 1."""

    @property
    def step_s(self) -> float:
        return sum(self.stage_s.values())


def profile_engine(
    config: EngineConfig, *, batch_sizes: Sequence[int] = BATCH_SIZES, progress: Progress | None = None
) -> tuple[ModelCard, Iterator[StepProfile]]:
    """Loads a model; the profiles are measured as they are iterated over, and the model is freed at their end.

    Args:
        config: its sizes and `parallel` are replaced by what the profile needs, unless a context size is given.

    Raises:
        StokerError: the model cannot be loaded, or later that the machine is too busy.
    """
    clock = StageClock()
    ctx_size = config.ctx_size or _CTX_SIZE
    parallel = max(batch_sizes)
    sizes = {"ctx_size": ctx_size, "kv_tokens": ctx_size * parallel, "parallel": parallel}
    config = msgspec.structs.replace(config, **sizes, max_draft=0)
    engine, card = assembly.build_engine(config, progress=progress, mark=clock.mark)
    return card, _profiles(engine, clock, batch_sizes)


def _profiles(engine: Engine, clock: StageClock, batch_sizes: Sequence[int]) -> Iterator[StepProfile]:
    try:
        engine.warm_up()
        for batch_size in batch_sizes:
            for name, sampling in _SAMPLINGS.items():
                yield _profile(name, batch_size, _measured(engine, clock, batch_size, sampling))
    finally:
        engine.close()


def _measured(engine: Engine, clock: StageClock, batch_size: int, sampling: SamplingParams) -> list[dict[Stage, float]]:
    for _ in range(_MAX_ATTEMPTS):
        if steps := list(_steps(engine, clock, batch_size, sampling))[_NUM_WARM_UP:]:
            return steps
    raise ResourceExhausted(f"{batch_size} requests never got a token in the same step: the machine is too busy")


def _steps(
    engine: Engine, clock: StageClock, batch_size: int, sampling: SamplingParams
) -> Iterator[dict[Stage, float]]:
    """The steps in which all requests decode."""
    max_tokens = _NUM_WARM_UP + _NUM_STEPS + _SLACK * batch_size
    params = SamplingParams(ignore_eos=True, max_tokens=max_tokens).filled_from(sampling)
    prompts = Prompts("profile", batch_size)
    for index in range(batch_size):
        prompt = prompts.text(_PROMPT_WORDS)
        engine.add(engine.admit(Submit(f"{index}", prompt, params, cache_prompt=False)))
    num_seen = 0
    while engine.has_work:
        clock.begin()
        events = engine.step()
        _encode(events)
        clock.mark("publish")
        if len(events) == batch_size and num_seen < _NUM_WARM_UP + _NUM_STEPS:
            num_seen += 1
            yield clock.take()


def _encode(events: list[Event]) -> bytes:
    return msgspec.msgpack.encode(events)


def _profile(name: str, batch_size: int, steps: list[dict[Stage, float]]) -> StepProfile:
    stage_s: dict[Stage, float] = {stage: median(step[stage] for step in steps) for stage in STAGES}
    shares = [1 - step["forward"] / sum(step.values()) for step in steps]
    return StepProfile(name, batch_size, stage_s, median(shares))
