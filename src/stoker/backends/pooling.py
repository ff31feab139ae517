"""Pooling: the hidden states of tokens become one embedding per sequence, also if the sequence comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Embeddings
from stoker.core.embedding import Piece, Pooling


class Pool:
    """Pools the hidden states of sequences. For the sequence in slot 0 it keeps partial results between pieces.

    Args:
        pooling: mean, cls or last.
        size: elements of a hidden state.
    """

    def __init__(self, pooling: Pooling, size: int) -> None:
        assert pooling is not Pooling.RANK, "ranks are not pooled"
        self._pooling = pooling
        self._size = size
        self._sum: NDArray[np.float64] = np.zeros(size)

    def push(self, pieces: Sequence[Piece], hidden: NDArray[np.float32]) -> Embeddings:
        """Returns the embeddings of the sequences that end with one of the pieces, in the order of the pieces.

        Args:
            pieces: the pieces of one pass.
            hidden: their hidden states, `(tokens of all pieces, size)`, piece after piece.
        """
        rows: list[NDArray[np.float64]] = []
        at = 0
        for piece in pieces:
            found = self._push(piece, hidden[at : at + len(piece.entries)])
            if piece.is_last:
                rows.append(found)
            at += len(piece.entries)
        return np.stack(rows).astype(np.float32) if rows else np.empty((0, self._size), dtype=np.float32)

    def _push(self, piece: Piece, hidden: NDArray[np.float32]) -> NDArray[np.float64]:
        before = np.zeros(self._size) if piece.start == 0 else self._sum
        match self._pooling:
            case Pooling.CLS:
                found = hidden[0].astype(np.float64) if piece.start == 0 else before
            case Pooling.LAST:
                found = hidden[-1].astype(np.float64)
            case _:
                found = before + hidden.sum(axis=0, dtype=np.float64)
        if piece.slot == 0:
            self._sum = found
        return found / piece.end if self._pooling is Pooling.MEAN and piece.is_last else found
