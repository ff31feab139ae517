"""Prometheus metric types: histograms, and a marker for gauges. It has no clock and knows no metric's name."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate


class Gauge(Enum):
    """Marks a field that holds a present value, not a count: `num_running: Annotated[int, Gauge.SUM]`.

    The member says how the values of several engines are combined.
    """

    SUM = "sum"
    """The values are added up."""
    LARGEST = "largest"
    """The largest value counts, as for a folder that all engines share and each knows only partly."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A snapshot of a histogram."""

    counts: tuple[int, ...] = ()
    """Number of values per bucket: one bucket per bound, and one for values above all bounds. Empty = no value yet."""
    total: float = 0.0
    """The sum of all values."""

    @property
    def num_values(self) -> int:
        return sum(self.counts)

    def cumulative(self, bounds: Sequence[float]) -> list[tuple[str, int]]:
        """The buckets in Prometheus form: each upper bound as text, and the number of values up to it."""
        counts = self.counts or (0,) * (len(bounds) + 1)
        return list(zip([*(f"{bound:g}" for bound in bounds), "+Inf"], accumulate(counts), strict=True))


class Histogram:
    """Counts values into buckets. One thread uses it.

    Args:
        bounds: the largest value of each bucket, ascending; values above the last bound have a bucket of their own.
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
