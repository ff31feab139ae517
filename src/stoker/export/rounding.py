"""Rounds weights to few bits, block by block, and measures what that costs. It knows no file and no graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.export.blocks import F32, Blocks, Bytes

BLOCK = 32
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""How much of a block's range is covered: cutting its ends off can make the steps in it so much finer."""


@dataclass(slots=True)
class RoundingError:
    """Grows with every block that is rounded."""

    squares: float = 0.0
    """Sum of the squares of all weights."""
    squared_errors: float = 0.0

    def add(self, weights: F32, rounded: F32) -> None:
        """Counts some weights in."""
        self.squares += float(np.square(weights, dtype=np.float64).sum())
        self.squared_errors += float(np.square(weights - rounded, dtype=np.float64).sum())

    @property
    def relative(self) -> float:
        """The root of the mean squared error, in roots of the mean square of the weights."""
        return (self.squared_errors / self.squares) ** 0.5 if self.squares else 0.0


def round_to_8_bits(weights: F32) -> tuple[Blocks, None]:
    """Symmetric: the largest weight of a block becomes 127 steps.

    Args:
        weights: shape `(rows, columns)`, columns a multiple of `BLOCK`.
    """
    blocks = weights.reshape(len(weights), -1, BLOCK)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    codes = np.rint(blocks / _nonzero(scales)[..., None]) + 128
    return Blocks(codes.astype(np.uint8), scales, None), None


def round_to_4_bits(weights: F32) -> tuple[Blocks, Bytes]:
    """Sixteen steps between about the smallest and the largest weight of a block; 0 stays 0.

    Args:
        weights: shape `(rows, columns)`, columns a multiple of `BLOCK`.

    Returns:
        Codes and scales, and the code of zero in each block, shape `(rows, blocks)`.
    """
    blocks = weights.reshape(len(weights), -1, BLOCK)
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    best_error = np.full(low.shape, np.inf, dtype=np.float32)
    best_scales, best_zeros = np.zeros_like(low), np.zeros(low.shape, dtype=np.uint8)
    for shrink in _SHRINKS:
        scales = (high - low) * np.float32(shrink / 15)
        zeros = np.clip(np.rint(-low * np.float32(shrink) / _nonzero(scales)), 0, 15)
        steps = _codes(blocks, scales, zeros) - zeros[..., None]
        # With the codes as they are, this scale leaves the smallest error.
        scales = (blocks * steps).sum(axis=-1) / _nonzero(np.square(steps).sum(axis=-1))
        error = np.square(steps * scales[..., None] - blocks).sum(axis=-1)
        is_better = error < best_error
        best_error[is_better], best_scales[is_better] = error[is_better], scales[is_better]
        best_zeros[is_better] = zeros[is_better].astype(np.uint8)
    codes = _codes(blocks, best_scales, best_zeros.astype(np.float32))
    return Blocks(codes.astype(np.uint8), best_scales, None), best_zeros


def _codes(blocks: F32, scales: F32, zeros: F32) -> F32:
    return np.clip(np.rint(blocks / _nonzero(scales)[..., None]) + zeros[..., None], 0, 15)


def _nonzero(scales: F32) -> F32:
    return np.where(scales > 0, scales, np.float32(1))
