"""A rotary position embedding (RoPE) as plain numbers, independent of the kind of scaling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.kinds import RopePairs

_TABLE_ROWS = 1024


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
