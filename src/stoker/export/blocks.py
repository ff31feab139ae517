"""Unpacks GGML's quantized blocks: integer codes with a scale, and for some types an offset, for each block.

```
weight = (code - zero_point) * scale + offset           zero_point = half of the code's range, the same in all blocks
```

The layouts are those of `ggml-common.h` and `dequantize_row_*` in llama.cpp. Nothing is rounded here, except for the
last bit of a float32 offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
F32: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The form of a quantized matrix, as `MatMulNBits` needs it."""

    bits: int
    """Number of bits of a code: 4 or 8."""
    size: int
    """Number of weights in a block: 16 or 32."""
    has_offsets: bool

    @property
    def zero_point(self) -> int:
        return 1 << (self.bits - 1)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Some rows of a matrix, unpacked into codes, scales and offsets."""

    codes: Bytes
    """Codes, shape `(rows, blocks, size)`, one code in each byte."""
    scales: F32
    """Scale of each block, shape `(rows, blocks)`."""
    offsets: F32 | None
    """Offset of each block, shape `(rows, blocks)`; None if the type has no offsets."""

    def weights(self, zero_point: int) -> F32:
        """The weights themselves, shape `(rows, columns)`."""
        found = (self.codes.astype(np.float32) - np.float32(zero_point)) * self.scales[..., None]
        if self.offsets is not None:
            found += self.offsets[..., None]
        return found.reshape(len(found), -1)


@dataclass(frozen=True, slots=True)
class BlockType:
    """One of GGML's block types: the form that it becomes, and the function that unpacks it."""

    shape: BlockShape
    block_bytes: int
    unpack: Callable[[Bytes], tuple[Integers, F32, F32 | None]]
    """Blocks as in the file, shape `(blocks, block_bytes)` -> signed codes around zero, scales, offsets."""

    def blocks(self, raw: Bytes) -> Blocks:
        """Unpacks rows.

        Args:
            raw: shape `(rows, bytes of a row)`.
        """
        rows, size = len(raw), self.shape.size
        signed, scales, offsets = self.unpack(raw.reshape(-1, self.block_bytes))
        codes = (signed + self.shape.zero_point).astype(np.uint8).reshape(rows, -1, size)
        return Blocks(codes, scales.reshape(rows, -1), None if offsets is None else offsets.reshape(rows, -1))


def _half(raw: Bytes, at: int) -> F32:
    """The float16 at a byte of each block, shape `(blocks, 1)`."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(raw: Bytes, run: int) -> NDArray[np.int16]:
    """The low halves of `run` bytes, then their high halves, and so on; shape `(blocks, codes)`."""
    return _fields(raw, run, 4)


def _fields(raw: Bytes, run: int, bits: int) -> NDArray[np.int16]:
    """The lowest `bits` of `run` bytes, then the next ones of the same bytes, …; shape `(blocks, codes)`."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = raw.reshape(len(raw), -1, 1, run) >> shifts[:, None]
    return (parts & ((1 << bits) - 1)).reshape(len(raw), -1).astype(np.int16)


def _fifth_bits(raw: Bytes, at: int) -> NDArray[np.int16]:
    return np.unpackbits(raw[:, at : at + 4], axis=-1, bitorder="little").astype(np.int16) << 4


def _q4_0(raw: Bytes) -> tuple[Integers, F32, None]:
    return _nibbles(raw[:, 2:], 16) - 8, _half(raw, 0), None


def _q4_1(raw: Bytes) -> tuple[Integers, F32, F32]:
    scale = _half(raw, 0)
    return _nibbles(raw[:, 4:], 16) - 8, scale, _half(raw, 2) + 8 * scale


def _q5_0(raw: Bytes) -> tuple[Integers, F32, None]:
    return (_nibbles(raw[:, 6:], 16) | _fifth_bits(raw, 2)) - 16, _half(raw, 0), None


def _q5_1(raw: Bytes) -> tuple[Integers, F32, F32]:
    scale = _half(raw, 0)
    return (_nibbles(raw[:, 8:], 16) | _fifth_bits(raw, 4)) - 16, scale, _half(raw, 2) + 16 * scale


def _q8_0(raw: Bytes) -> tuple[Integers, F32, None]:
    return raw[:, 2:].view(np.int8).astype(np.int16), _half(raw, 0), None


def _q2_k(raw: Bytes) -> tuple[Integers, F32, F32]:
    scale: F32 = _half(raw, 80) * (raw[:, :16] & 15)
    minimum: F32 = _half(raw, 82) * (raw[:, :16] >> 4)
    return _fields(raw[:, 16:80], 32, 2) - 2, scale, 2 * scale - minimum


def _q3_k(raw: Bytes) -> tuple[Integers, F32, None]:
    low, high = _fields(raw[:, 96:104], 8, 4), _fields(raw[:, 104:108], 4, 2)
    scale = _half(raw, 108) * ((low | high << 4) - 32)
    codes = _fields(raw[:, 32:96], 32, 2) + 4 * _fields(raw[:, :32], 32, 1)
    return codes - 4, scale, None


def _q4_k(raw: Bytes) -> tuple[Integers, F32, F32]:
    scale, minimum = _scales_and_minima(raw)
    return _nibbles(raw[:, 16:], 32) - 8, scale, 8 * scale - minimum


def _q5_k(raw: Bytes) -> tuple[Integers, F32, F32]:
    scale, minimum = _scales_and_minima(raw)
    codes = _nibbles(raw[:, 48:], 32) | _fields(raw[:, 16:48], 32, 1) << 4
    return codes - 16, scale, 16 * scale - minimum


def _scales_and_minima(raw: Bytes) -> tuple[F32, F32]:
    """Scales and minima of eight blocks, six bits each: four bytes of scales, four of minima, four with the rest."""
    scales, minima, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    return (
        _half(raw, 0) * np.concatenate((scales & 63, (rest & 15) | ((scales >> 2) & 48)), axis=-1),
        _half(raw, 2) * np.concatenate((minima & 63, (rest >> 4) | ((minima >> 2) & 48)), axis=-1),
    )


def _q6_k(raw: Bytes) -> tuple[Integers, F32, None]:
    codes = _nibbles(raw[:, :128], 64) | _fields(raw[:, 128:192], 32, 2) << 4
    scale = _half(raw, 208) * np.ascontiguousarray(raw[:, 192:208]).view(np.int8)
    return codes - 32, scale, None


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int16)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int16)
"""Twice the values that the four bits stand for, so that all are integers."""


def _iq4_nl(raw: Bytes) -> tuple[Integers, F32, None]:
    return _IQ4[_nibbles(raw[:, 2:], 16)], _half(raw, 0), None


def _iq4_xs(raw: Bytes) -> tuple[Integers, F32, None]:
    pairs = np.ascontiguousarray(raw[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = _fields(raw[:, 4:8], 1, 4)
    scale = _half(raw, 0) * ((low | (pairs & 3).astype(np.int16) << 4) - 32)
    return _IQ4[_nibbles(raw[:, 8:], 16)], scale, None


def _mxfp4(raw: Bytes) -> tuple[Integers, F32, None]:
    return _E2M1[_nibbles(raw[:, 1:], 16)], np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128), None


BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(BlockShape(4, 32, has_offsets=False), 18, _q4_0),
    "Q4_1": BlockType(BlockShape(4, 32, has_offsets=True), 20, _q4_1),
    "Q5_0": BlockType(BlockShape(8, 32, has_offsets=False), 22, _q5_0),
    "Q5_1": BlockType(BlockShape(8, 32, has_offsets=True), 24, _q5_1),
    "Q8_0": BlockType(BlockShape(8, 32, has_offsets=False), 34, _q8_0),
    "Q2_K": BlockType(BlockShape(4, 16, has_offsets=True), 84, _q2_k),
    "Q3_K": BlockType(BlockShape(4, 16, has_offsets=False), 110, _q3_k),
    "Q4_K": BlockType(BlockShape(4, 32, has_offsets=True), 144, _q4_k),
    "Q5_K": BlockType(BlockShape(8, 32, has_offsets=True), 176, _q5_k),
    "Q6_K": BlockType(BlockShape(8, 16, has_offsets=False), 210, _q6_k),
    "IQ4_NL": BlockType(BlockShape(8, 32, has_offsets=False), 18, _iq4_nl),
    "IQ4_XS": BlockType(BlockShape(8, 32, has_offsets=False), 136, _iq4_xs),
    "MXFP4": BlockType(BlockShape(8, 32, has_offsets=False), 17, _mxfp4),
}
"""GGML's name -> type, for the quantized types of the native executor that can be exported."""
