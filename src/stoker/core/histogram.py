"""Counts of values by size, as Prometheus has them. It has no clock and knows no name."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram has seen."""

    counts: tuple[int, ...] = ()
    """One per bound, of values up to it and above the one before; the last one has no bound. Empty = nothing yet."""
    total: float = 0.0
    """The sum of all values."""

    @property
    def num_values(self) -> int:
        return sum(self.counts)

    def cumulative(self, bounds: Sequence[float]) -> list[tuple[str, int]]:
        """Prometheus's buckets: the text of an upper bound, and how many values are not above it."""
        counts = self.counts or (0,) * (len(bounds) + 1)
        return list(zip([*(f"{bound:g}" for bound in bounds), "+Inf"], accumulate(counts), strict=True))


class Histogram:
    """Counts values into buckets. One thread uses it.

    Args:
        bounds: the largest value of each bucket, ascending; what is above the last one counts too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(bounds)
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Counts `count` equal values."""
        self._counts[bisect_left(self.bounds, value)] += count
        self._total += value * count

    def snapshot(self) -> Distribution:
        return Distribution(tuple(self._counts), self._total)
