"""Reports about an engine's work: views for inspection tools, and prefill progress for the client of a long prompt."""

from __future__ import annotations

import msgspec

from stoker.core.pool_view import PoolView, SequenceState
from stoker.engine.stats import EngineStats


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Measurements of one step of the engine. Times are in milliseconds; counts are in tokens."""

    serial: int
    """Serial number of the record, in one sequence with those of moments."""
    at_s: float
    """Time at which the step ended, on the clock of `EngineView.now_s`."""
    step_ms: float
    """Time from the start of the forward pass to the last sampled token."""
    forward_ms: float
    sample_ms: float
    num_decodes: int
    num_prompt: int
    num_drafted: int
    num_accepted: int
    num_imported: int
    """Tokens whose KV was restored from the RAM or disk tier in the step."""
    members: list[tuple[int, int]]
    """For each sequence in the step, its slot and the number of its computed tokens."""
    plan_ms: float = 0.0
    """Time that the scheduler took before the step."""
    step_id: int = 0
    """Number of the step in the traces of requests."""


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event in the life of a request, or of the KV pool."""

    serial: int
    """Serial number of the record, in one sequence with those of steps."""
    at_s: float
    kind: str
    """`arrived`, `begun`, `first`, `finished`, `ended`, `evicted`, `preempted`, `paused`, or `resumed`."""
    request_id: str
    """Id of the request; empty = the event concerns no single request."""
    count: int
    """Tokens: prompt tokens (`arrived`), cached prompt tokens (`begun`), answer tokens (`finished`), evicted tokens
    (`evicted`). For `preempted`, number of requests."""


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one engine at one moment, and its records since the previous look."""

    replica: int = 0
    recorder: str
    """Name of the recorder. A restart, or a while without a `Look`, gives a new one, whose serials begin anew."""
    now_s: float
    """Current time in seconds, on the engine's own clock."""
    serial: int
    """Serial number of the newest record."""
    steps: list[StepRecord]
    moments: list[Moment]
    sequences: list[SequenceState]
    arrivals: dict[str, float] = {}
    """Arrival time of each live request, on the clock of `now_s`."""
    pool: PoolView
    stats: EngineStats


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Progress of prefill of one prompt. Counts are in tokens."""

    num_prompt: int
    num_cached: int
    num_computed: int
    """Computed tokens, including cached ones."""
    elapsed_s: float
    """Seconds since the request's first step began."""
