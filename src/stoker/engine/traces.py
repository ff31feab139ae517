"""Traces of a request's tokens, for clients that ask for them: the step of each token, and whether it was drafted."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import msgspec

from stoker.core.sequence import Sequence


class TraceEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts about a request as a whole, at its end. Counts are in tokens."""

    slot: int
    """The slot in which the last token was computed."""
    queue_s: float
    """Time from the arrival of the request to the first step that computed a part of it, in seconds."""
    cached: tuple[int, int, int]
    """Prompt tokens found in the KV pool, restored from the RAM tier, and restored from the disk tier."""
    num_preempted: int


class Trace(msgspec.Struct, frozen=True, array_like=True):
    """The trace of the tokens of one output, in their order."""

    steps: list[int]
    """For each token, the number of the step that computed it."""
    drafted: list[bool]
    """For each token, whether it was drafted by speculative decoding."""
    end: TraceEnd | None = None
    """Facts about the whole request, on its last output only."""


class Tracer:
    """Collects the trace of one request. Belongs to the thread that steps."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._drafted: list[bool] = []
        self._slot = -1

    def note(self, step_id: int, slot: int | None, num_tokens: int) -> None:
        """Notes that a step has given `num_tokens` tokens to the request. All but the last were drafted."""
        self._steps += [step_id] * num_tokens
        self._drafted += [True] * (num_tokens - 1) + [False]
        self._slot = self._slot if slot is None else slot

    def take(self, num_tokens: int, sequence: Sequence, queue_s: float | None) -> Trace:
        """Returns and removes the trace of the oldest tokens.

        Args:
            num_tokens: number of tokens to take.
            sequence: the sequence of the request.
            queue_s: see `TraceEnd`; given for the last output only.
        """
        trace = Trace(
            self._steps[:num_tokens],
            self._drafted[:num_tokens],
            None if queue_s is None else self._end(sequence, queue_s),
        )
        del self._steps[:num_tokens], self._drafted[:num_tokens]
        return trace

    def _end(self, sequence: Sequence, queue_s: float) -> TraceEnd:
        return TraceEnd(self._slot, queue_s, sequence.cached_from, sequence.num_preempted)


def merged(traces: Listed[Trace]) -> Trace | None:
    """Joins the traces of consecutive outputs of one request; None if there are none."""
    if not traces:
        return None
    steps = [step for trace in traces for step in trace.steps]
    return Trace(steps, [is_drafted for trace in traces for is_drafted in trace.drafted], traces[-1].end)
