"""Rotary position embeddings (RoPE): frequencies from a file's parameters, in float64, unscaled or scaled.

A file states Llama 3 and LongRoPE scaling as a tensor with one divisor per frequency. YaRN: arXiv:2309.00071.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log, pi

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.kinds import RopePairs

_TABLE_ROWS = 1024
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
"""YaRN keeps frequencies with more turns in the original context than the first, and scales those with fewer than the
second fully."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rope:
    """A rotary position embedding: pair i of a head at position p turns by `p * frequencies[i]`.

    The frequencies include any scaling (linear, YaRN, Llama 3, LongRoPE).
    """

    pairs: RopePairs
    frequencies: NDArray[np.float64]
    """Radians per position, shape `(dim / 2,)`; elements of a head after the first `dim` are not rotated."""
    magnitude: float = 1.0
    """Factor of sine and cosine."""
    axes: tuple[int, ...] = ()
    """Multi-dimensional RoPE: for each pair the axis (0 = time, 1 = rows, 2 = columns) of its position; empty = one
    axis. The position of a token is the same on all axes; that of a row of an image is not."""

    @property
    def dim(self) -> int:
        return 2 * len(self.frequencies)

    def tables(self, num_positions: int) -> NDArray[np.float32]:
        """Cosines and sines of positions `0 … num_positions-1`, `(num_positions, 2, dim / 2)`, computed in float64."""
        found = np.empty((num_positions, 2, len(self.frequencies)), dtype=np.float32)
        for start in range(0, num_positions, _TABLE_ROWS):
            rows = slice(start, min(start + _TABLE_ROWS, num_positions))
            angles = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * self.frequencies
            found[rows, 0] = np.cos(angles) * self.magnitude
            found[rows, 1] = np.sin(angles) * self.magnitude
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """RoPE scaling, which extends the context. With `factor` 1 and no YaRN there is no scaling."""

    factor: float = 1.0
    is_yarn: bool = False
    original_context: int
    """Context length in tokens that the unscaled frequencies were trained with."""
    attention_factor: float = 1.0
    """Factor of sine and cosine, from the file."""


def scaled_rope(
    *, pairs: RopePairs, dim: int, base: float, scaling: RopeScaling, divisors: NDArray[np.float32] | None = None
) -> Rope:
    """The rotary position embedding of one kind of layer.

    Args:
        pairs: which elements form a pair.
        dim: number of elements of a head that are rotated; even.
        base: RoPE's base (theta): the slowest pair turns about `base` times slower than the fastest.
        scaling: linear or YaRN.
        divisors: a divisor for each of the `dim / 2` frequencies.
    """
    trained = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if divisors is not None:
        trained = trained / divisors
    stretched = trained / scaling.factor
    if not scaling.is_yarn:
        return Rope(pairs=pairs, frequencies=stretched, magnitude=scaling.attention_factor)
    keep = _yarn_share_kept(dim, base, scaling.original_context)
    magnitude = scaling.attention_factor * (1 + 0.1 * log(scaling.factor) if scaling.factor > 1 else 1)
    return Rope(pairs=pairs, frequencies=stretched * (1 - keep) + trained * keep, magnitude=magnitude)


def no_rope(pairs: RopePairs, dim: int) -> Rope:
    """The rotary position embedding of layers without one: all frequencies are 0."""
    return Rope(pairs=pairs, frequencies=np.zeros(dim // 2))


def _yarn_share_kept(dim: int, base: float, original_context: int) -> NDArray[np.float64]:
    """The share of each unscaled frequency that YaRN keeps: 1 for fast ones, 0 for slow ones, a ramp between them."""

    def pair_that_turns(times: float) -> float:
        return dim * log(original_context / (times * 2 * pi)) / (2 * log(base))

    low = max(0, floor(pair_that_turns(_BETA_FAST)))
    high = min(dim - 1, ceil(pair_that_turns(_BETA_SLOW)))
    ramp = (np.arange(dim // 2, dtype=np.float64) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)
