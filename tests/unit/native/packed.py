"""Random tensors of every type that the kernels take, as a GGUF file holds them, and packed."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from stoker import _native
from tests.gguf_values import set_half
from tests.small_types import SMALL_TYPES, block_of, dequantized, number_of

TYPES = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", *SMALL_TYPES,
)  # fmt: skip
GRID_TYPES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0")
ALL_TYPES = (*TYPES, *GRID_TYPES)
FLOATS = ("F32", "F16", "BF16")
_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    **dict.fromkeys((*GRID_TYPES, *SMALL_TYPES), (0,)), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor in both forms."""

    type: int
    rows: int
    columns: int
    weights: NDArray[np.float32]
    """`(rows, columns)`, dequantised by the gguf package."""
    packed: NDArray[np.uint8]

    def matmul(
        self, x: NDArray[np.float32], kernels: str = "", first_tile: int = 0, last_tile: int = -1
    ) -> NDArray[np.float32]:
        """Zeros where no tile was asked for."""
        y = np.zeros((len(x), self.rows), np.float32)
        _native.matmul(self.type, self.packed, self.rows, self.columns, x, y, first_tile, last_tile, kernels)
        return y

    def unpack_row(self, row: int, kernels: str) -> NDArray[np.float32]:
        out = np.empty(self.columns, np.float32)
        _native.unpack_row(self.type, self.packed, self.rows, self.columns, row, out, kernels)
        return out


def aligned(num_bytes: int) -> NDArray[np.uint8]:
    memory = np.empty(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + num_bytes]


def file_bytes(name: str, rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """`(rows, bytes a row)`: random codes, scales of a sensible size."""
    if name in FLOATS:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(rows, -1)
    block, size = block_of(name)
    blocks = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    for at in _HALVES.get(name, ()):
        set_half(blocks, name, at, rng.uniform(-0.05, 0.05, len(blocks)))
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 126, len(blocks))
    if name == "NVFP4":
        blocks[:, :4] = rng.integers(0, 50, (len(blocks), 4))
        blocks[::7, 0] = 0x7F  # no number: llama.cpp takes it for 0
    return blocks.reshape(rows, -1)


def pack(name: str, source: NDArray[np.uint8], columns: int) -> Packed:
    kind, rows = number_of(name), len(source)
    packed = aligned(_native.packed_bytes(kind, rows, columns))
    packed[:] = 0xAA
    _native.pack(kind, source, rows, columns, packed)
    typed = source.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
    return Packed(kind, rows, columns, dequantized(name, typed).reshape(rows, columns), packed)


def random_packed(name: str, rows: int, columns: int, seed: int = 1) -> Packed:
    return pack(name, file_bytes(name, rows, columns, np.random.default_rng(seed)), columns)
