"""The form of each matrix in an exported model: which tensors it needs in the graph, and how their bytes are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stoker.backends.native.file import FLOAT_TYPES, ModelParts
from stoker.backends.native.layer_parts import Linear
from stoker.errors import ModelUnsupported
from stoker.export.blocks import BLOCK_TYPES, F32, Blocks, BlockShape, Bytes
from stoker.export.initializers import Initializer, Piece
from stoker.export.options import WeightKind
from stoker.export.rows import Rows, dequantized

_U8, _F16, _F32 = np.dtype("<u1"), np.dtype("<f2"), np.dtype("<f4")


@dataclass(frozen=True, slots=True, eq=False)
class BlockMatrix:
    """A matrix of integer codes in blocks, for `MatMulNBits` and `GatherBlockQuantized`. Satisfies `Source`.

    ```
    codes        (rows, blocks, bytes of a block)    two codes a byte if they have 4 bits, the first one in its low half
    scales       (rows, blocks)
    zero_points  (rows, bytes)                       only if weights are rounded to 4 bits; packed like codes
    offsets      (blocks, rows)                      for the product with the sums of the input's blocks
    ```
    """

    name: str
    rows: Rows
    shape: BlockShape
    error: RoundingError | None = None
    """The rounding error, complete when the bytes have been made; None = nothing is rounded."""

    @property
    def form(self) -> str:
        """The form in words, for the report."""
        more = " with offsets" if self.shape.has_offsets else ""
        return f"{self.shape.bits} bits in blocks of {self.shape.size}{more}"

    @property
    def blocks(self) -> int:
        """Number of blocks in a row."""
        return self.rows.num_columns // self.shape.size

    @property
    def codes(self) -> Initializer:
        dims = (self.rows.num_rows, self.blocks, self.shape.size * self.shape.bits // 8)
        return Initializer(f"{self.name}.codes", dims, _U8)

    @property
    def scales(self) -> Initializer:
        return Initializer(f"{self.name}.scales", (self.rows.num_rows, self.blocks), _F32)

    @property
    def zero_points(self) -> Initializer | None:
        if self.error is None or self.shape.bits == 8:
            return None
        return Initializer(f"{self.name}.zero_points", (self.rows.num_rows, -(-self.blocks // 2)), _U8)

    @property
    def offsets(self) -> Initializer | None:
        if not self.shape.has_offsets:
            return None
        return Initializer(f"{self.name}.offsets", (self.blocks, self.rows.num_rows), _F32)

    @property
    def initializers(self) -> tuple[Initializer, ...]:
        every = (self.codes, self.scales, self.zero_points, self.offsets)
        return tuple(tensor for tensor in every if tensor is not None)

    def pieces(self) -> Iterator[Piece]:
        codes, scales, zero_points, offsets = self.codes, self.scales, self.zero_points, self.offsets
        columns = list[F32]()
        for row, raw in self.rows.chunks():
            blocks, zeros = self._blocks(raw)
            yield codes, row * (codes.num_bytes // codes.dims[0]), _packed(blocks.codes, self.shape.bits)
            yield scales, 4 * row * self.blocks, blocks.scales
            if zero_points is not None and zeros is not None:
                yield zero_points, row * zero_points.dims[1], _packed(zeros, self.shape.bits)
            if blocks.offsets is not None:
                columns.append(blocks.offsets)
        if offsets is not None:
            yield offsets, 0, np.concatenate(columns).T

    def _blocks(self, raw: Bytes) -> tuple[Blocks, Bytes | None]:
        if self.error is None:
            return BLOCK_TYPES[self.rows.type].blocks(raw), None
        weights = dequantized(self.rows.type, raw)
        blocks, zeros = round_to_8_bits(weights) if self.shape.bits == 8 else round_to_4_bits(weights)
        signed = blocks.codes.astype(np.float32) - (128 if zeros is None else zeros[..., None])
        self.error.add(weights, (signed * blocks.scales[..., None]).reshape(weights.shape))
        return blocks, zeros


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Codes packed into bytes; with 4 bits, the last code of an odd number gets a byte of its own."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate((codes, np.zeros_like(codes[..., :1])), axis=-1)
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


@dataclass(frozen=True, slots=True, eq=False)
class FloatMatrix:
    """A matrix of floating-point numbers. Satisfies `Source`."""

    name: str
    rows: Rows
    dtype: np.dtype[np.float16] | np.dtype[np.float32]
    is_table: bool
    """Whether rows are stored as rows, for lookups. Otherwise, they are stored as columns, as `MatMul` needs them."""
    error: RoundingError | None = None
    """The rounding error, complete when the bytes have been made; None = nothing is rounded."""

    @property
    def form(self) -> str:
        """The form in words, for the report."""
        return f"float{8 * self.dtype.itemsize}"

    @property
    def weight(self) -> Initializer:
        dims = (self.rows.num_rows, self.rows.num_columns)
        return Initializer(f"{self.name}.weight", dims if self.is_table else dims[::-1], self.dtype)

    @property
    def initializers(self) -> tuple[Initializer, ...]:
        return (self.weight,)

    def pieces(self) -> Iterator[Piece]:
        chunks = ((row, self._rounded(weights)) for row, weights in self.rows.floats())
        if self.is_table:
            for row, weights in chunks:
                yield self.weight, row * self.rows.num_columns * self.dtype.itemsize, weights
        else:
            yield self.weight, 0, np.concatenate([weights for _, weights in chunks]).T

    def _rounded(self, weights: F32) -> np.ndarray[tuple[int, ...], np.dtype[np.float16 | np.float32]]:
        with np.errstate(over="ignore"):
            found = weights.astype(self.dtype)
        if self.dtype == _F16 and not np.isfinite(found).all():
            path = self.rows.parts.first.path
            raise ModelUnsupported(
                f"{path} cannot be exported with 16 bits: `{self.rows.linears[0].weight}` holds numbers that are too "
                "large for that; choose f32",
                path=str(path),
            )
        if self.error is not None:
            self.error.add(weights, found.astype(np.float32))
        return found


@dataclass(slots=True)
class Matrices:
    """Chooses the form of the matrices of one model, once for each matrix."""

    parts: ModelParts
    kind: WeightKind
    chosen: dict[tuple[Linear, ...], BlockMatrix | FloatMatrix] = field(
        default_factory=dict[tuple[Linear, ...], BlockMatrix | FloatMatrix]
    )

    def of(self, name: str, linears: tuple[Linear, ...], *, is_table: bool = False) -> BlockMatrix | FloatMatrix:
        """The form of these matrices, stacked into one.

        Args:
            name: how the names of its tensors in the graph begin.
            linears: matrices of one type, with rows of the same length.
            is_table: whether its rows are looked up.
        """
        if linears not in self.chosen:
            rows = Rows(self.parts, linears)
            self.chosen[linears] = self._choose(name, rows, is_table)
        return self.chosen[linears]

    def _choose(self, name: str, rows: Rows, is_table: bool) -> BlockMatrix | FloatMatrix:
        exact = BLOCK_TYPES.get(rows.type)
        if exact is None and rows.type not in FLOAT_TYPES:
            raise ModelUnsupported(f"`{rows.linears[0].weight}` is of the type {rows.type}, which cannot be exported")
        if self.kind == "f16" or (self.kind == "keep" and rows.type == "F16"):
            return FloatMatrix(name, rows, _F16, is_table, None if rows.type == "F16" else RoundingError())
        if self.kind == "f32" or (self.kind == "keep" and exact is None):
            return FloatMatrix(name, rows, _F32, is_table)
        bits = {"int4": 4, "int8": 8}.get(self.kind)
        if exact is not None and (bits is None or (exact.shape.bits <= bits and not exact.shape.has_offsets)):
            return BlockMatrix(name, rows, exact.shape)
        assert bits is not None
        return BlockMatrix(name, rows, BlockShape(bits, BLOCK, has_offsets=False), RoundingError())


BLOCK = 32
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Fractions of a block's range that rounding tries to cover: without the ends of the range, its steps are finer."""


@dataclass(slots=True)
class RoundingError:
    """The rounding error of a matrix, which grows with every part that is rounded."""

    squares: float = 0.0
    """Sum of the squares of all weights."""
    squared_errors: float = 0.0

    def add(self, weights: F32, rounded: F32) -> None:
        """Adds the errors of some weights."""
        self.squares += float(np.square(weights, dtype=np.float64).sum())
        self.squared_errors += float(np.square(weights - rounded, dtype=np.float64).sum())

    @property
    def relative(self) -> float:
        """Root mean square of the errors, divided by the root mean square of the weights."""
        return (self.squared_errors / self.squares) ** 0.5 if self.squares else 0.0


def round_to_8_bits(weights: F32) -> tuple[Blocks, None]:
    """Rounds symmetrically to 8 bits: the largest magnitude in a block becomes 127 steps.

    Args:
        weights: shape `(rows, columns)`, columns a multiple of `BLOCK`.
    """
    blocks = weights.reshape(len(weights), -1, BLOCK)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    codes = np.rint(blocks / _nonzero(scales)[..., None]) + 128
    return Blocks(codes.astype(np.uint8), scales, None), None


def round_to_4_bits(weights: F32) -> tuple[Blocks, Bytes]:
    """Rounds to 4 bits: sixteen values between about the smallest and the largest weight of a block; 0 stays 0.

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
        # For these codes, this scale has the smallest squared error.
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
