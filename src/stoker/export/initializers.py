"""Constant tensors of a graph: their shapes are known at once, their bytes are computed when they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Initializer:
    """A constant tensor of the graph."""

    name: str
    dims: tuple[int, ...]
    dtype: np.dtype[Any]
    same_bytes_as: Initializer | None = None
    """The tensor whose bytes this one shares, with other dimensions. None = this one has its own bytes."""

    @property
    def num_bytes(self) -> int:
        return prod(self.dims) * self.dtype.itemsize


Piece: TypeAlias = tuple[Initializer, int, NDArray[Any]]
"""A part of a tensor: the tensor, the offset in it in bytes, and the elements that belong there."""


class Source(Protocol):
    """Computes the bytes of some initializers, when they are written."""

    @property
    def initializers(self) -> tuple[Initializer, ...]: ...

    def pieces(self) -> Iterator[Piece]:
        """Yields all bytes of all initializers, in any order, in the right data type, little-endian."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource:
    """Satisfies `Source` with an array that is already in memory."""

    name: str
    array: NDArray[Any]

    @property
    def initializers(self) -> tuple[Initializer, ...]:
        return (self.initializer,)

    @property
    def initializer(self) -> Initializer:
        return Initializer(self.name, self.array.shape, self.array.dtype)

    def pieces(self) -> Iterator[Piece]:
        yield self.initializer, 0, self.array
