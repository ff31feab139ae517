"""What each matrix of a model becomes: which tensors it needs in the graph, and how their bytes are made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stoker.backends.native.file import ModelParts
from stoker.backends.native.spec import Linear
from stoker.errors import ModelUnsupported
from stoker.export.blocks import BLOCK_TYPES, F32, Blocks, BlockShape, Bytes
from stoker.export.initializers import Initializer, Piece
from stoker.export.options import WeightKind
from stoker.export.rounding import BLOCK, RoundingError, round_to_4_bits, round_to_8_bits
from stoker.export.rows import Rows, dequantized

_U8, _F16, _F32 = np.dtype("<u1"), np.dtype("<f2"), np.dtype("<f4")


@dataclass(frozen=True, slots=True, eq=False)
class BlockMatrix:
    """Integer codes in blocks, for `MatMulNBits` and `GatherBlockQuantized`. Satisfies `Source`.

    ```
    codes        (rows, blocks, bytes of a block)    two codes a byte if they have 4 bits, the first one in its low half
    scales       (rows, blocks)
    zero_points  (rows, bytes)                       only of rounded ones with 4 bits, packed alike
    offsets      (blocks, rows)                      for the product with the sums of the input's blocks
    ```
    """

    name: str
    rows: Rows
    shape: BlockShape
    error: RoundingError | None = None
    """What rounding costs, known when the bytes have been made; None = nothing is rounded."""

    @property
    def form(self) -> str:
        """In words."""
        more = " with offsets" if self.shape.has_offsets else ""
        return f"{self.shape.bits} bits in blocks of {self.shape.size}{more}"

    @property
    def blocks(self) -> int:
        """In a row."""
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
    """Codes as bytes; an odd last one of 4 bits gets a byte of its own."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate((codes, np.zeros_like(codes[..., :1])), axis=-1)
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


@dataclass(frozen=True, slots=True, eq=False)
class FloatMatrix:
    """Plain numbers. Satisfies `Source`."""

    name: str
    rows: Rows
    dtype: np.dtype[np.float16] | np.dtype[np.float32]
    is_table: bool
    """Rows lie in order, to be looked up; otherwise they are the columns, as `MatMul` wants them."""
    error: RoundingError | None = None
    """What rounding costs, known when the bytes have been made; None = nothing is rounded."""

    @property
    def form(self) -> str:
        """In words."""
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
    """Chooses what the matrices of one model become, each once."""

    parts: ModelParts
    kind: WeightKind
    chosen: dict[tuple[Linear, ...], BlockMatrix | FloatMatrix] = field(
        default_factory=dict[tuple[Linear, ...], BlockMatrix | FloatMatrix]
    )

    def of(self, name: str, linears: tuple[Linear, ...], *, is_table: bool = False) -> BlockMatrix | FloatMatrix:
        """What these matrices, one on top of the other, become.

        Args:
            name: of its tensors in the graph.
            linears: of one type, with equally long rows.
            is_table: rows of it are looked up.
        """
        if linears not in self.chosen:
            rows = Rows(self.parts, linears)
            self.chosen[linears] = self._choose(name, rows, is_table)
        return self.chosen[linears]

    def _choose(self, name: str, rows: Rows, is_table: bool) -> BlockMatrix | FloatMatrix:
        exact = BLOCK_TYPES.get(rows.type)
        if self.kind == "f16" or (self.kind == "keep" and rows.type == "F16"):
            return FloatMatrix(name, rows, _F16, is_table, None if rows.type == "F16" else RoundingError())
        if self.kind == "f32" or (self.kind == "keep" and exact is None):
            return FloatMatrix(name, rows, _F32, is_table)
        bits = {"int4": 4, "int8": 8}.get(self.kind)
        if exact is not None and (bits is None or (exact.shape.bits <= bits and not exact.shape.has_offsets)):
            return BlockMatrix(name, rows, exact.shape)
        assert bits is not None
        return BlockMatrix(name, rows, BlockShape(bits, BLOCK, has_offsets=False), RoundingError())
