"""Blocks with scales that are floats, which no GGUF file has: packed and multiplied as the types of GGUF are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native.packed import aligned
from tests.unit.native.test_matmul import quantised, rows_of

KERNELS = _native.kernel_names()
NIBBLES, BYTES, BYTES_16 = 1 << 16, (1 << 16) + 1, (1 << 16) + 2
ROWS, COLUMNS = 35, 320


def blocks_of(kind: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Blocks as `pack` takes them, `(rows, bytes of a row)`, and the weights that they are, with exact scales."""
    rng = np.random.default_rng(3)
    half = 128 if kind != NIBBLES else 8
    codes = rng.integers(0, 2 * half, (ROWS, COLUMNS // 32, 32), dtype=np.uint8)
    scales = rng.uniform(-0.1, 0.1, (ROWS, COLUMNS // 32, 2 if kind == BYTES_16 else 1)).astype(np.float32)
    kept = ((scales.view(np.uint32) + 2) & ~np.uint32(3)).view(np.float32)
    stored = codes[..., :16] | codes[..., 16:] << 4 if kind == NIBBLES else codes ^ 0x80
    raw = np.concatenate((scales.view(np.uint8).reshape(*stored.shape[:2], -1), stored), axis=-1)
    signed = (codes.astype(np.float64) - half).reshape(ROWS, COLUMNS // 32, kept.shape[-1], -1)
    return raw.reshape(ROWS, -1).astype(np.uint8), (signed * kept[..., None].astype(np.float64)).reshape(ROWS, COLUMNS)


@pytest.mark.parametrize("kind", [NIBBLES, BYTES, BYTES_16], ids=["nibbles", "bytes", "bytes of 16"])
def test_products_are_those_of_the_weights_on_every_instruction_set(kind: int) -> None:
    raw, weights = blocks_of(kind)
    packed = aligned(_native.packed_bytes(kind, ROWS, COLUMNS))
    _native.pack(kind, raw, ROWS, COLUMNS, packed)
    for count in (1, 5, 40):
        x = rows_of(count, COLUMNS)
        expected = quantised(x) @ weights.T
        bound = 3e-6 * np.abs(quantised(x)) @ (np.abs(weights) + 2 * np.abs(weights).max(axis=1, keepdims=True)).T
        first: NDArray[np.float32] | None = None
        for kernels in KERNELS:
            y = np.zeros((count, ROWS), np.float32)
            _native.matmul(kind, packed, ROWS, COLUMNS, x, y, kernels=kernels)
            assert (np.abs(y - expected) <= bound + 1e-30).all()
            first = y if first is None else first
            np.testing.assert_array_equal(y, first)
