"""Rows of images and recordings that a backend has been given, until no batch names them any more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.core.media import RowPiece


class HeldRows:
    """Rows by the keys of their spans. One thread uses it.

    Args:
        width: numbers of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: dict[bytes, NDArray[np.float32]] = {}

    def hold(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """Rows of a span, `(length, width)`, for the batches that name its key."""
        assert rows.ndim == 2, "rows of a span"
        assert rows.shape[1] == self._width, "as wide as the model takes them"
        self._rows[key] = rows

    def drop(self, key: bytes) -> None:
        """No batch names this key any more."""
        self._rows.pop(key, None)

    def of(self, piece: RowPiece) -> NDArray[np.float32]:
        """The rows of a part of a span, `(length, width)`."""
        return self._rows[piece.span.key][piece.first : piece.first + piece.length]
