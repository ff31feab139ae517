"""Round-robin over sets of adapters, for backends that compute one set per step. It plans no step.

```
    lane     all sequences of one set of adapters; of a backend that mixes sets, all sequences
    steps    | lane A | lane A | lane B | lane B | lane C | lane C | lane A | …
```

A lane has its turn for about `TURN_S`, in `TURN_STEPS` steps at most, and then goes to the end: every stream
gets about as many steps as any other, and waits for at most one turn of each lane that was there before. New lanes go
behind the present ones: a client that invents a scale for each request overtakes no other.

One step for each would make tokens come evenly, but changing adapters costs libllama about 8 ms, which is as much as a
third of a step of a small model (docs/adapters.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from stoker.core.batch import AdapterSet
from stoker.core.model_info import ModelInfo
from stoker.core.sequence import Sequence

Lane: TypeAlias = AdapterSet

TURN_S = 0.1
"""A turn ends with the step that makes it so long."""
TURN_STEPS = 8
"""Most steps of a turn, however short they are."""


class AdapterRotation:
    """The queue of lanes. One per scheduler.

    Args:
        info: says whether a step may mix sets of adapters.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._is_one_lane = info.mixes_adapters
        self._queue: dict[Lane, None] = {}
        """Whose turn comes first is first."""
        self._present: Lane | None = None
        """Who had the last step, and may have the next."""
        self._num_steps = 0
        """Of the present turn."""
        self._turn_s = 0.0
        """How long they took, as far as is known."""

    def lane_of(self, sequence: Sequence) -> Lane:
        return () if self._is_one_lane else sequence.request.adapters

    def of(self, lane: Lane, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The sequences that can share a step in this lane."""
        if self._is_one_lane:
            return list(sequences)
        return [sequence for sequence in sequences if sequence.request.adapters == lane]

    def order(self, sequences: Iterable[Sequence]) -> list[Lane]:
        """The lanes of these sequences, in the order in which the next step is to be offered to them."""
        present = dict.fromkeys([self.lane_of(sequence) for sequence in sequences])
        if present.keys() == self._queue.keys():
            return list(self._queue)
        kept = [lane for lane in self._queue if lane in present]
        self._queue = dict.fromkeys((*kept, *present))
        return list(self._queue)

    def take(self, lane: Lane) -> None:
        """A step goes to this lane. Those before it had nothing to compute, and keep their places."""
        if self._is_one_lane:
            return
        if lane != self._present:
            self._present, self._num_steps, self._turn_s = lane, 0, 0.0
        self._num_steps += 1
        if len(self._queue) > 1:
            del self._queue[lane]
            self._queue = {lane: None, **self._queue}
        if self._num_steps >= TURN_STEPS:
            self._end()

    def observe(self, step_s: float) -> None:
        """The step that was taken last took so long."""
        if self._is_one_lane:
            return
        self._turn_s += step_s
        if self._turn_s >= TURN_S:
            self._end()

    def _end(self) -> None:
        if self._present in self._queue:
            del self._queue[self._present]
            self._queue[self._present] = None
        self._present = None
