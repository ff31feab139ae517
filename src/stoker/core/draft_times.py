"""What steps of decodes take with drafted entries in them, as it was measured lately. It has no clock.

A step of few rows waits for memory, so that one row more costs little; in a step of many, which waits for arithmetic,
it costs as much as any. Where that changes depends on the model, the machine and the hour, so it is measured: for each
number of sequences, by the number of drafted entries. What was not measured lies on the lines between what was.

Neighbours only ever make a step longer, so of two measurements that contradict each other the longer one is wrong: a
step with fewer entries takes no longer than one with more.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

_GAIN = 0.3
"""Part of an error that is corrected at once."""
_MAX_SURPRISE = 2.0
"""A step that took longer than this times what was known counts no more than that: something stood in its way."""
_LIFETIME = 128
"""Steps after which a measurement is no longer believed, and so made again if that may be worth it."""
_REFRESH = 64
"""So often, at least, a step has no drafts: all others are compared with it."""
_FIRST_STEP = 3
"""Entries to be tried first, and one for every four sequences; then about twice as many as were tried before."""
_FIRST_SHARE, _FIRST_ROW = 0.04, 0.5
"""What an entry costs before anything is known, as parts of a step without any, and of one of its rows; the smaller of
the two, which is low enough to be tried."""
_FORGIVENESS = 0.01
"""Part of the way back there, for each step without drafts: one bad minute shall not end them."""


class _Measured(NamedTuple):
    seconds: float
    step: int


class DraftTimes:
    """Seconds of steps, by sequences and drafted entries."""

    def __init__(self) -> None:
        self._measured: dict[int, dict[int, _Measured]] = {}
        self._entry_s: float | None = None
        """What a drafted entry lately cost."""
        self._num_steps = 0

    def observe(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """A step of decodes with so many entries drafted besides took so long."""
        self._num_steps += 1
        measured = self._measured.setdefault(num_sequences, {})
        known, plain = measured.get(num_drafted), measured.get(0)
        if known is not None:
            step_s = known.seconds + _GAIN * (min(step_s, _MAX_SURPRISE * known.seconds) - known.seconds)
        elif plain is not None:
            step_s = min(step_s, (1 + num_drafted) * plain.seconds)
        measured[num_drafted] = _Measured(step_s, self._num_steps)
        for count in [count for count, its in measured.items() if count and its.step <= self._num_steps - _LIFETIME]:
            del measured[count]
        self._learn_entry(num_sequences, num_drafted, measured)

    def curve(self, num_sequences: int, most: int) -> list[float]:
        """Seconds with 0 … `most` drafted entries, or fewer if so many would be a leap; empty = a step without any has
        to be measured first.
        """
        measured = self._measured.get(num_sequences)
        if measured is None or 0 not in measured or measured[0].step <= self._num_steps - _REFRESH:
            return []
        points = _rising(sorted((count, known.seconds) for count, known in measured.items()))
        seconds = [points[0][1]]
        for (left, left_s), (right, right_s) in pairwise(points):
            slope = (right_s - left_s) / (right - left)
            seconds += [left_s + slope * step for step in range(1, right - left + 1)]
        last = points[-1][0]
        entry_s = self._first_guess_s(num_sequences, seconds[0]) if self._entry_s is None else self._entry_s
        leap = last + _FIRST_STEP + num_sequences // 4
        seconds += [seconds[last] + entry_s * step for step in range(1, leap + 1)]
        return seconds[: most + 1]

    def _learn_entry(self, num_sequences: int, num_drafted: int, measured: dict[int, _Measured]) -> None:
        if 0 not in measured:
            return
        plain_s = measured[0].seconds
        first_s = self._first_guess_s(num_sequences, plain_s)
        entry_s = first_s if self._entry_s is None else self._entry_s
        if num_drafted:
            seen_s = max(0.0, measured[num_drafted].seconds - plain_s) / num_drafted
            self._entry_s = entry_s + _GAIN * (seen_s - entry_s)
        elif entry_s > first_s:
            self._entry_s = entry_s + _FORGIVENESS * (first_s - entry_s)

    def _first_guess_s(self, num_sequences: int, plain_s: float) -> float:
        return min(_FIRST_SHARE, _FIRST_ROW / num_sequences) * plain_s


def _rising(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The same with no time longer than a later one."""
    least = accumulate([seconds for _, seconds in reversed(points)], min)
    return list(zip([count for count, _ in points], reversed(list(least)), strict=True))
