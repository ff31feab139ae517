"""What an engine reports of its work: for inspection, and to the client of a long prompt."""

from __future__ import annotations

import msgspec

from stoker.core.pool_view import PoolView, SequenceState
from stoker.engine.stats import EngineStats


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step of the loop did. Times are in milliseconds; counts are in tokens."""

    serial: int
    """Grows with every record, of a step or of a moment."""
    at_s: float
    """When it ended, on the clock of `EngineView.now_s`."""
    step_ms: float
    """From the forward pass to the last token that was sampled."""
    forward_ms: float
    sample_ms: float
    num_decodes: int
    num_prompt: int
    num_drafted: int
    num_accepted: int
    num_imported: int
    """Restored from memory or disk beside it."""
    members: list[tuple[int, int]]
    """Who was in it: the slot of each, and how many of its tokens were computed."""
    plan_ms: float = 0.0
    """What the scheduler took before it."""
    step_id: int = 0
    """The number by which traces of requests name it."""


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that happened between two steps."""

    serial: int
    """As of `StepRecord`."""
    at_s: float
    kind: str
    """`arrived`, `begun`, `first`, `finished`, `ended`, `evicted`, `preempted`, `paused`, or `resumed`."""
    request_id: str
    """Empty: it concerns no single request."""
    count: int
    """Tokens: of the prompt when it arrived, taken from the cache when it began, written when it finished, evicted.
    Of `preempted`: requests."""


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one moment, and what it has done since it was last looked at."""

    replica: int = 0
    recorder: str
    """Changes after a restart, and after a while without a `Look`: serials begin anew."""
    now_s: float
    """Seconds, on the engine's own clock."""
    serial: int
    """Of the newest record."""
    steps: list[StepRecord]
    moments: list[Moment]
    sequences: list[SequenceState]
    arrivals: dict[str, float] = {}
    """When each of them arrived, on the clock of `now_s`."""
    pool: PoolView
    stats: EngineStats


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a prompt is computed. Counts are in tokens."""

    num_prompt: int
    num_cached: int
    num_computed: int
    """With those that were cached."""
    elapsed_s: float
    """Since its first step began."""
