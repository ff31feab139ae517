"""Measures where the time of a decoding step goes, with an engine in this process. It uses no thread and no HTTP.

All requests decode in the measured steps. `forward` is the backend's computation; everything else is overhead.
`publish` contains the encoding of the frame that would be sent to the server's process.
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
from stoker.errors import InvalidInput
from stoker.lazy import lazy_module

if TYPE_CHECKING:
    from stoker import assembly
    from stoker.models.progress import Progress
else:
    assembly = lazy_module("stoker.assembly")  # imports all backends

BATCH_SIZES = (1, 8, 16)
TARGET_SHARE = 0.05
"""Target for the share of a step beside the forward pass, at batch size 8."""
STAGES: tuple[Stage, ...] = get_args(Stage)

_NUM_WARM_UP, _NUM_STEPS = 4, 24
_PROMPT_WORDS = 16
_CTX_SIZE = 512
"""Default context size, in tokens: with the smallest chunks, about 200 steps pass until 16 requests decode together."""
_SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(seed=1),
    "penalised": SamplingParams(seed=1, repetition_penalty=1.1, logit_bias={0: -1.0}),
    "dry": SamplingParams(seed=1, dry_multiplier=0.8, dry_allowed_length=1),
}
"""Ways of sampling; `sampled` has the defaults. Only `dry` spends time in the stage `mask`: the kernel that chooses a
token applies all others, in the stage `sample`."""


class StageClock:
    """Adds up the time of each stage of one step. The engine calls `mark` at the end of a stage."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last_s = clock()
        self._spent_s = dict.fromkeys(STAGES, 0.0)

    def begin(self) -> None:
        """Starts a step: sets all times to 0."""
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
    """The profile of one batch size with one way of sampling: medians over the steps, in seconds."""

    sampling: str
    batch_size: int
    stage_s: dict[Stage, float]
    overhead_share: float
    """Share of a step outside of the stage `forward`, 0 to 1; the median over the steps."""

    @property
    def step_s(self) -> float:
        return sum(self.stage_s.values())


def profile_engine(
    config: EngineConfig, *, batch_sizes: Sequence[int] = BATCH_SIZES, progress: Progress | None = None
) -> tuple[ModelCard, Iterator[StepProfile]]:
    """Loads a model. Iterating over the profiles measures them, and frees the model at the end.

    Args:
        config: `parallel` and `kv_tokens` are replaced by what the profile needs, and `ctx_size` if it is not given.

    Raises:
        StokerError: the model cannot be loaded.
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
                yield _profile(name, batch_size, list(_steps(engine, clock, batch_size, sampling))[_NUM_WARM_UP:])
    finally:
        engine.close()


def _steps(
    engine: Engine, clock: StageClock, batch_size: int, sampling: SamplingParams
) -> Iterator[dict[Stage, float]]:
    """Seconds in each stage, for each step in which all requests decode."""
    params = SamplingParams(ignore_eos=True).filled_from(sampling)
    prompts = Prompts("profile", batch_size)
    request_ids = [f"{index}" for index in range(batch_size)]
    for request_id in request_ids:
        prompt = prompts.text(_PROMPT_WORDS)
        engine.add(engine.admit(Submit(request_id, prompt, params, cache_prompt=False)))
    num_seen = 0
    while engine.has_work and num_seen < _NUM_WARM_UP + _NUM_STEPS:
        clock.begin()
        events = engine.step()
        _encode(events)
        clock.mark("publish")
        if len(events) == batch_size:
            num_seen += 1
            yield clock.take()
    for request_id in request_ids:
        engine.abort(request_id)


def _encode(events: list[Event]) -> bytes:
    return msgspec.msgpack.encode(events)


def _profile(name: str, batch_size: int, steps: list[dict[Stage, float]]) -> StepProfile:
    if not steps:
        raise InvalidInput(
            f"{batch_size} requests never ran together: raise --ctx-size, or leave it out", parameter="ctx_size"
        )
    stage_s: dict[Stage, float] = {stage: median(step[stage] for step in steps) for stage in STAGES}
    shares = [1 - step["forward"] / sum(step.values()) for step in steps]
    return StepProfile(name, batch_size, stage_s, median(shares))
