"""Tensors that a graph will hold: their shapes are known at once, their bytes are made when they are written."""

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
    """It lies where another one lies, and differs in its dimensions only."""

    @property
    def num_bytes(self) -> int:
        return prod(self.dims) * self.dtype.itemsize


Piece: TypeAlias = tuple[Initializer, int, NDArray[Any]]
"""Which one, the first byte in it, and the elements that belong there."""


class Source(Protocol):
    """Makes the bytes of some initializers, once."""

    @property
    def initializers(self) -> tuple[Initializer, ...]: ...

    def pieces(self) -> Iterator[Piece]:
        """Every byte of every one, in any order; of the right type, little-endian."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource:
    """Satisfies `Source` with an array that is in memory already."""

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
