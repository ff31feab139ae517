"""The small matrices behind pooling: an embedding is projected, or a text is given a score."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.base import Embeddings
from stoker.backends.native.spec import Dense, DenseActivation, Pooled
from stoker.backends.native.weights import Weights


class DenseLayers:
    """Applies them to pooled rows; a row's result does not depend on the others.

    Args:
        pooled: what they are.
        weights: in which they lie.
        eps: of norms.
    """

    def __init__(self, pooled: Pooled, weights: Weights, eps: float) -> None:
        self._dense = [_Loaded(dense, weights, eps) for dense in pooled.dense]
        self._is_classifier = pooled.is_classifier

    def apply(self, rows: Embeddings) -> Embeddings:
        """From `(n, hidden_size)` to `(n, size)`. Of a classifier: how much more likely its first label is than the
        others together, as a logarithm; of one with a single label its output.
        """
        for dense in self._dense:
            rows = dense.apply(rows)
        if not self._is_classifier or rows.shape[1] == 1:
            return rows
        scores = rows.astype(np.float64)
        others = np.logaddexp.reduce(scores[:, 1:], axis=1)
        return (scores[:, 0] - others).astype(np.float32)[:, None]


class _Loaded:
    """One of them, with the memory that its weights lie in."""

    def __init__(self, dense: Dense, weights: Weights, eps: float) -> None:
        self._dense, self._weights, self._eps = dense, weights, eps
        place = weights.layout.matrices[dense.linear]
        self._place = place
        self._matrix = memoryview(weights.memory)[place.offset : place.offset + place.num_bytes]
        self._bias = self._vector(weights.layout.biases[dense.linear].offset, place.rows) if dense.linear.bias else None
        norm = dense.norm
        self._norm = None if norm is None else self._vector(weights.layout.norms[norm].offset, norm.size)

    def apply(self, rows: Embeddings) -> Embeddings:
        place = self._place
        found = np.empty((len(rows), place.rows), dtype=np.float32)
        if len(rows):
            _native.matmul(place.type, self._matrix, place.rows, place.columns, np.ascontiguousarray(rows), found)
        values = found.astype(np.float64)
        if self._bias is not None:
            values += self._bias
        if self._dense.activation is DenseActivation.TANH:
            values = np.tanh(values)
        elif self._dense.activation is DenseActivation.GELU:
            values = _gelu(values)
        if self._norm is not None:
            values -= values.mean(axis=1, keepdims=True)
            values = values / np.sqrt((values**2).mean(axis=1, keepdims=True) + self._eps) * self._norm
        return values.astype(np.float32)

    def _vector(self, offset: int, size: int) -> NDArray[np.float64]:
        return np.frombuffer(self._weights.memory, dtype=np.float32, count=size, offset=offset).astype(np.float64)


def _gelu(values: NDArray[np.float64]) -> NDArray[np.float64]:
    halves = [0.5 * value * (1 + erf(value / sqrt(2))) for value in values.flat]
    return np.array(halves).reshape(values.shape)
