"""How a decoder names what it takes from a file: matrices, or some rows of them, and vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`weight @ x + bias`: some consecutive rows of a matrix in the file, so that fused matrices can be taken apart."""

    weight: str
    """Name of a tensor of shape (columns, at least `first_row + num_rows`), in the file's order."""
    num_rows: int
    num_columns: int
    first_row: int = 0
    bias: str | None = None
    """Name of a vector; its elements `first_row` … belong to these rows."""
    num_stacked: int = 1
    """Of how many equal matrices, one below the other, the tensor consists; then it has one more dimension."""
    run: int = 0
    """The rows are so many behind one another, then `gap` are left out, and so on; 0 = none is left out."""
    gap: int = 0
    """0 = as many as `run`."""

    def rows_in_file(self) -> NDArray[np.int64]:
        """Which rows of the tensor these are, `(num_rows,)`."""
        rows = np.arange(self.num_rows)
        return self.first_row + rows + (rows // self.run * (self.gap or self.run) if self.run else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The weights of a norm (see `NormKind`), times `scale`."""

    weight: str
    size: int
    scale: float = 1.0
    """Packed into the weights. Before the head it scales the logits."""
    num_stacked: int = 1
    """Of how many equal vectors, one behind the other, it consists; then the tensor has one more dimension."""
    taps: int = 0
    """Of a convolution: so many weights for each channel, which lie together in the file. Packed tap by tap."""
    bias: str | None = None
    """Name of another vector of this size, packed behind it."""

    @property
    def num_floats(self) -> int:
        """Floats of the vector and of its bias."""
        return self.size * (1 if self.bias is None else 2)
