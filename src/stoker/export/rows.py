"""Reads the rows of a model's matrices from its files, some at a time. Their exported form is decided elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.backends.native.file import ModelParts
from stoker.backends.native.layer_parts import Linear
from stoker.export.blocks import BLOCK_TYPES, F32, Bytes

_CHUNK_WEIGHTS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Matrices of one type, with rows of the same length, stacked into one."""

    parts: ModelParts
    linears: tuple[Linear, ...]

    @property
    def type(self) -> str:
        """GGML's name of the type."""
        return self.parts.tensors[self.linears[0].weight].type.name

    @property
    def num_rows(self) -> int:
        return sum(linear.num_rows for linear in self.linears)

    @property
    def num_columns(self) -> int:
        return self.linears[0].num_columns

    def chunks(self) -> Iterator[tuple[int, Bytes]]:
        """Yields some rows at a time: index of the first row, and packed bytes of shape `(rows, bytes of a row)`."""
        step, first = max(1, _CHUNK_WEIGHTS // self.num_columns), 0
        for linear in self.linears:
            data = np.frombuffer(self.parts.tensor_data(linear.weight), dtype=np.uint8)
            matrix = data.reshape(self.parts.tensors[linear.weight].shape[1], -1)
            matrix = matrix[linear.first_row : linear.first_row + linear.num_rows]
            for row in range(0, linear.num_rows, step):
                yield first + row, matrix[row : row + step]
            first += linear.num_rows

    def floats(self) -> Iterator[tuple[int, F32]]:
        """Yields some rows at a time: index of the first row, and weights of shape `(rows, columns)`."""
        for row, raw in self.chunks():
            yield row, dequantized(self.type, raw)


def same_type(parts: ModelParts, linears: Sequence[Linear]) -> bool:
    """Whether these matrices can be stacked: they have one type, and rows of the same length."""
    return len({(parts.tensors[linear.weight].type.name, linear.num_columns) for linear in linears}) == 1


def dequantized(type_name: str, raw: Bytes) -> F32:
    """The weights in packed rows of a float type or of one of `BLOCK_TYPES`.

    Args:
        type_name: GGML's name of the type.
        raw: shape `(rows, bytes of a row)`.
    """
    raw = np.ascontiguousarray(raw)
    if type_name == "F32":
        return raw.view("<f4")
    if type_name == "F16":
        return raw.view("<f2").astype(np.float32)
    if type_name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    kind = BLOCK_TYPES[type_name]
    return kind.blocks(raw).weights(kind.shape.zero_point)


def vector(parts: ModelParts, name: str, first: int, size: int) -> F32:
    """A copy of `size` elements of a vector tensor, from index `first` on."""
    return parts.floats(name)[first : first + size].copy()
