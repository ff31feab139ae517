"""Rows (input embeddings) of images and recordings that a backend holds while batches may name them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.core.media import RowPiece


class HeldRows:
    """The rows that one backend holds, by the keys of their spans. Only one thread uses it.

    Args:
        width: elements of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: dict[bytes, NDArray[np.float32]] = {}

    def hold(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """Keeps the rows of a span, `(length, width)`, for batches that name its key."""
        assert rows.ndim == 2, "rows of a span"
        assert rows.shape[1] == self._width, "as wide as the model takes them"
        self._rows[key] = rows

    def drop(self, key: bytes) -> None:
        """Frees the rows of this key, which no batch names any more. Unknown keys are ignored."""
        self._rows.pop(key, None)

    def of(self, piece: RowPiece) -> NDArray[np.float32]:
        """The rows of a part of a span, `(length, width)`."""
        return self._rows[piece.span.key][piece.first : piece.first + piece.length]
