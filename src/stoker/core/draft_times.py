"""What steps of decodes take with drafted entries in them, as it was measured lately. It has no clock.

A step of few rows waits for memory, so that one row more costs little; in a step of many, which waits for arithmetic,
it costs as much as any. Where that changes depends on the model, the machine and the hour, so it is measured: for each
number of sequences, by the number of drafted entries. What was not measured lies on the lines between what was.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

_GAIN = 0.3
"""Part of an error that is corrected at once."""
_MAX_SURPRISE = 2.0
"""A step that took longer than this times what was known counts no more than that: something stood in its way."""
_LIFETIME = 128
"""Steps after which something is no longer believed, and so tried again if it may be worth it."""
_FORGIVENESS = 0.01
"""Part of the way back to the first guess, for each step without drafts: one bad minute shall not end them."""
_FIRST_STEP = 3
"""Entries to be tried first; then about twice as many as were tried before."""
_FIRST_GUESS = 0.04
"""Of a step without drafts, for each entry, before anything is known: low enough to be tried."""


class _Measured(NamedTuple):
    seconds: float
    step: int


class DraftTimes:
    """Seconds of steps, by sequences and drafted entries."""

    def __init__(self) -> None:
        self._measured: dict[int, dict[int, _Measured]] = {}
        self._entry_share: float = _FIRST_GUESS
        """What a drafted entry lately cost, as a part of a step without any."""
        self._num_steps = 0

    def observe(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """A step of decodes with so many entries drafted besides took so long."""
        self._num_steps += 1
        measured = self._measured.setdefault(num_sequences, {})
        known = measured.get(num_drafted)
        if known is not None and known.step > self._num_steps - _LIFETIME:
            step_s = known.seconds + _GAIN * (min(step_s, _MAX_SURPRISE * known.seconds) - known.seconds)
        elif num_drafted and 0 in measured:
            step_s = min(step_s, (1 + num_drafted) * measured[0].seconds)
        measured[num_drafted] = _Measured(step_s, self._num_steps)
        if num_drafted == 0:
            self._entry_share -= _FORGIVENESS * max(0.0, self._entry_share - _FIRST_GUESS)
        elif 0 in measured:
            share = max(0.0, step_s / measured[0].seconds - 1) / num_drafted
            self._entry_share += _GAIN * (share - self._entry_share)

    def curve(self, num_sequences: int, most: int) -> list[float]:
        """Seconds with 0 … `most` drafted entries, or fewer if so many would be a leap; empty = it is not known what a
        step takes without any.
        """
        measured = self._measured.get(num_sequences)
        if measured is None:
            return []
        oldest = self._num_steps - _LIFETIME
        for num_drafted in [count for count, known in measured.items() if known.step <= oldest]:
            del measured[num_drafted]
        if 0 not in measured:
            return []
        points = sorted((count, known.seconds) for count, known in measured.items())
        seconds = [points[0][1]]
        for (left, left_s), (right, right_s) in pairwise(points):
            slope = (right_s - left_s) / (right - left)
            seconds += [left_s + slope * step for step in range(1, right - left + 1)]
        most = min(most, 2 * points[-1][0] + _FIRST_STEP)
        slope = self._entry_share * seconds[0]
        seconds += [seconds[-1] + slope * step for step in range(1, most - len(seconds) + 2)]
        return list(accumulate(seconds[: most + 1], max))
