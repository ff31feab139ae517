"""Round-robin over sets of adapters, for backends that compute one set per step. It plans no step.

```
    lane     all sequences with one set of adapters; all sequences if the backend mixes sets
    steps    | lane A | lane A | lane B | lane B | lane C | lane C | lane A | …
```

The turn of a lane takes about `TURN_S` seconds and at most `TURN_STEPS` steps; then the lane goes to the end of the
queue. So every stream gets about the same number of steps, and waits for at most one turn of each lane before it. New
lanes go to the end: a client cannot overtake others with a new adapter scale for each request.

Turns of a single step would make tokens come more evenly, but a change of adapters costs libllama about 8 ms, up to a
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
"""Duration of a turn in seconds; the turn ends with the step that reaches it."""
TURN_STEPS = 8
"""Maximum number of steps of a turn."""


class AdapterRotation:
    """The queue of lanes. One instance per scheduler.

    Args:
        info: `mixes_adapters` says whether a step may mix sets of adapters; then there is a single lane.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._is_one_lane = info.mixes_adapters
        self._queue: dict[Lane, None] = {}
        """The lanes in order of their turns."""
        self._present: Lane | None = None
        """The lane whose turn it is; None = the last turn has ended."""
        self._num_steps = 0
        """Number of steps in the present turn."""
        self._turn_s = 0.0
        """Duration of the observed steps of the present turn, in seconds."""

    def lane_of(self, sequence: Sequence) -> Lane:
        return () if self._is_one_lane else sequence.request.adapters

    def of(self, lane: Lane, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The sequences that can share a step in this lane."""
        if self._is_one_lane:
            return list(sequences)
        return [sequence for sequence in sequences if sequence.request.adapters == lane]

    def order(self, sequences: Iterable[Sequence]) -> list[Lane]:
        """The lanes of these sequences, in order of turns: the first one with entries to compute gets the next step."""
        present = dict.fromkeys([self.lane_of(sequence) for sequence in sequences])
        if present.keys() == self._queue.keys():
            return list(self._queue)
        kept = [lane for lane in self._queue if lane in present]
        self._queue = dict.fromkeys((*kept, *present))
        return list(self._queue)

    def take(self, lane: Lane) -> None:
        """Notes that this lane gets a step. The lanes before it had nothing to compute; they keep their places."""
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
        """Adds the duration of the last step to the present turn."""
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
