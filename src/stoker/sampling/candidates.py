"""The tokens that may still be chosen for one row, and the selection of the largest logits without sorting them all.

This module works on arrays of logits; sampling parameters are handled elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.sampling.exponential import exp

Row: TypeAlias = NDArray[np.float32]
"""The logits of one sequence, `(vocab_size,)`, contiguous: NumPy's order of summation depends on the layout."""

TokenIds: TypeAlias = NDArray[np.intp]
Logits: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

_BLOCK = 16_384
"""Number of values that are summed at a time: a wide temporary array costs more than the sum."""

_FOLD = 64
"""Maximum number of values in a column of `_superset`."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Tokens with their logits, never empty. The arrays are never written to.

    Ordered by ascending token id, or, with `is_sorted`, by descending logit and ascending id where logits tie.
    Some logits may be -inf, but never all; none is NaN or +inf.
    """

    token_ids: TokenIds
    logits: Logits
    is_sorted: bool = False

    def __len__(self) -> int:
        return self.token_ids.size

    def keep(self, positions: NDArray[np.intp] | slice) -> Candidates:
        """The candidates at these ascending positions, still in the same order."""
        return Candidates(self.token_ids[positions], self.logits[positions], self.is_sorted)

    @property
    def peak(self) -> float:
        """The largest logit."""
        return float(self.logits[0] if self.is_sorted else self.logits.max())

    def within(self, distance: float) -> NDArray[np.intp]:
        """Positions of the logits that are at most `distance` below the largest one."""
        return np.flatnonzero(self.logits >= np.float64(self.peak - distance))

    def shifted(self) -> NDArray[np.float64]:
        """Logits minus the largest one: float64 values from -inf to 0, in a new array."""
        return np.subtract(self.logits, self.peak, dtype=np.float64)

    def weights(self) -> NDArray[np.float64]:
        """Unnormalized probabilities, scaled so that the largest is 1."""
        shifted = self.shifted()
        # Compiled code weighs its sorted candidates with the same `exp`, so results are equal bit for bit.
        return exp(shifted) if self.is_sorted else np.exp(shifted, out=shifted)

    def total_weight(self) -> float:
        """The sum of `weights`, computed without an array of all weights."""
        total, peak = 0.0, self.peak
        for start in range(0, len(self), _BLOCK):
            block = np.subtract(self.logits[start : start + _BLOCK], peak, dtype=np.float64)
            total += float(np.exp(block, out=block).sum())
        return total

    def without_impossible(self) -> Candidates:
        """The candidates whose logit is not -inf."""
        is_possible = np.isfinite(self.logits)
        return self if is_possible.all() else self.keep(np.flatnonzero(is_possible))

    def by_token_id(self) -> Candidates:
        """The same candidates, ordered by ascending token id."""
        if not self.is_sorted:
            return self
        order = np.argsort(self.token_ids)
        return Candidates(self.token_ids[order], self.logits[order])

    def largest(self, count: int) -> Candidates:
        """The `count` (at least 1) largest logits, sorted; of equal logits the lowest ids win."""
        if self.is_sorted:
            return self.keep(slice(0, count))
        positions = largest_positions(self.logits, count)
        return Candidates(self.token_ids[positions], self.logits[positions], is_sorted=True)


def largest_positions(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Positions of the `count` largest values, by descending value; of equal values the first ones win.

    One linear pass finds a superset that is hardly larger than `count`; only that is sorted.
    """
    if count >= values.size:
        return np.argsort(-values, kind="stable")
    positions = _superset(values, count)
    found = values[positions]
    if found.size > count:
        inside = _exactly(found, count)
        positions, found = positions[inside], found[inside]
    return positions[np.argsort(-found, kind="stable")]


def _superset(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Ascending positions of all values above a bound that at least `count` of them reach, and few more.

    ```
    values, folded:   v0    v1    …  v(c-1)      `count` column maxima reach the bound,
                      vc    v(c+1) …             so at least `count` values do, and only
    column maxima:    m0    m1    …  m(c-1)      their columns need to be looked at again
    rest:             shorter than a row, looked at too
    ```
    """
    height = min(_FOLD, values.size // (8 * count))
    if height < 2:
        return np.flatnonzero(values >= _nth_largest(values, count))
    width = values.size // height
    folded = values[: width * height].reshape(height, width)
    maxima = folded.max(axis=0)
    bound = _nth_largest(maxima, count)
    columns = np.flatnonzero(maxima >= bound)
    if columns.size > width // 2:
        return np.flatnonzero(values >= bound)
    rows, among = np.nonzero(folded[:, columns] >= bound)
    rest = np.flatnonzero(values[width * height :] >= bound) + width * height
    return np.concatenate((rows * width + columns[among], rest))


def _nth_largest(values: NDArray[np.floating], n: int) -> np.floating:
    return np.partition(values, values.size - n)[values.size - n]


def _exactly(values: NDArray[np.floating], count: int) -> NDArray[np.bool_]:
    """A mask of the `count` largest values; if several values tie for the last place, the first ones are marked."""
    smallest = _nth_largest(values, count)
    inside = values > smallest
    ties = np.flatnonzero(values == smallest)
    inside[ties[: count - int(np.count_nonzero(inside))]] = True
    return inside
