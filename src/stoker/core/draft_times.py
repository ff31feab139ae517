"""Predicts the duration of decode steps with drafted entries from recent measurements. It has no clock.

A step with few rows is bound by memory bandwidth, so that another row costs little; a step with many rows is bound by
arithmetic, and every row costs the same. The border depends on the model, the machine and its present load, so it is
measured: for each number of sequences, by the number of drafted entries. Other values are interpolated linearly.

Other processes only ever make a step longer, so if two measurements contradict each other, the longer one is wrong: a
step with fewer entries takes no longer than one with more.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

_GAIN = 0.3
"""Learning rate: fraction of a prediction error that is corrected at once."""
_MAX_SURPRISE = 2.0
"""Longer steps are counted as this multiple of the known duration: something else delayed them."""
_LIFETIME = 128
"""Number of steps after which a measurement with drafts expires, so that it may be repeated."""
_REFRESH = 64
"""Maximum number of steps between two steps without drafts, to which all others are compared."""
_FIRST_STEP = 3
"""A step may have twice the measured number of drafted entries, plus this number, plus one per four sequences."""
_FIRST_SHARE, _FIRST_ROW = 0.04, 0.5
"""First guess of the cost of a drafted entry: the smaller of these fractions of a step without drafts and of one of its
rows, respectively. It is low enough for drafts to be tried."""
_FORGIVENESS = 0.01
"""Learning rate back to the first guess in steps without drafts: one slow minute must not end drafts for good."""


class _Measured(NamedTuple):
    seconds: float
    step: int


class DraftTimes:
    """Seconds per decode step, by number of sequences and of drafted entries. Owned by `Speculation`."""

    def __init__(self) -> None:
        self._measured: dict[int, dict[int, _Measured]] = {}
        self._entry_s: float | None = None
        """Recent cost of a drafted entry, in seconds; None = not measured yet."""
        self._num_steps = 0

    def observe(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """Learns the duration of a decode step with `num_drafted` drafted entries."""
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
        """Predicted seconds of a step with 0 … `most` drafted entries, or fewer, where that is too far from measured
        values; empty = a step without drafts must be measured first.
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
    """The same points, with each time reduced to the smallest of the later ones."""
    least = accumulate([seconds for _, seconds in reversed(points)], min)
    return list(zip([count for count, _ in points], reversed(list(least)), strict=True))
