"""How each token of a request came about, for clients that ask for it: its step, and whether it was drafted."""

from __future__ import annotations

from collections.abc import Sequence as Listed

import msgspec

from stoker.core.sequence import Sequence


class TraceEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a request as a whole. Counts are in tokens."""

    slot: int
    """The slot in which its last token was computed."""
    queue_s: float
    """From its arrival to the first step that computed a part of it, in seconds."""
    cached: tuple[int, int, int]
    """Prompt tokens that were found in the pool, restored from memory, and restored from disk."""
    num_preempted: int


class Trace(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of one output, in their order."""

    steps: list[int]
    """The number of the step that made each of them."""
    drafted: list[bool]
    """Whether it was guessed before it was computed."""
    end: TraceEnd | None = None
    """On the last output of a request."""


class Tracer:
    """Collects the trace of one request. Belongs to the thread that steps."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._drafted: list[bool] = []
        self._slot = -1

    def note(self, step_id: int, slot: int | None, num_tokens: int) -> None:
        """A step has given so many tokens to the request. All but the last one of them were drafted."""
        self._steps += [step_id] * num_tokens
        self._drafted += [True] * (num_tokens - 1) + [False]
        self._slot = self._slot if slot is None else slot

    def take(self, num_tokens: int, sequence: Sequence, queue_s: float | None) -> Trace:
        """The trace of the oldest tokens that were not taken yet.

        Args:
            num_tokens: how many of them.
            sequence: of the request.
            queue_s: given for the last output: see `TraceEnd`.
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
    """The trace of several outputs of one request, in their order; None if there are none."""
    if not traces:
        return None
    steps = [step for trace in traces for step in trace.steps]
    return Trace(steps, [is_drafted for trace in traces for is_drafted in trace.drafted], traces[-1].end)
