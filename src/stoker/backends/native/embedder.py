"""Embeddings on Stoker's own kernels: a separate decoder, with separate KV, over the weights of the model."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, sqrt

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.base import Embeddings
from stoker.backends.native.decoder import describe
from stoker.backends.native.kv_types import KVType
from stoker.backends.native.options import NativeOptions
from stoker.backends.native.pages import PageLedger
from stoker.backends.native.spec import DecoderSpec, Dense, DenseActivation, Pooled
from stoker.backends.native.threads import Threads
from stoker.backends.native.weights import Weights
from stoker.backends.pooling import Pool
from stoker.core.embedding import EmbeddingInfo, Piece
from stoker.errors import BackendError, ModelNotLoaded, ResourceExhausted

_NUM_SLOTS = 64
_NUM_STATES = 8
"""Slots of a recurrent model: fewer, because each has a state, which may be large."""
_BATCH_TOKENS = 512


class NativeEmbedder:
    """Computes embeddings with the weights of one model; satisfies `Embedder`. The first pass allocates its KV."""

    def __init__(
        self, spec: DecoderSpec, weights: Weights, options: NativeOptions, kv_type: KVType, threads: Threads
    ) -> None:
        self._parts: tuple[DecoderSpec, Weights, KVType, Threads] | None = (spec, weights, kv_type, threads)
        self.embedding = EmbeddingInfo(
            pooling=options.pooling,
            size=spec.embedding_size,
            max_tokens=options.context_size,
            max_batch_tokens=max(_BATCH_TOKENS, options.context_size) if spec.sees_ahead else _BATCH_TOKENS,
            num_slots=_NUM_STATES if spec.state_bytes else _NUM_SLOTS,
            can_split=not spec.sees_ahead,
            suffix=options.frame.suffix,
            separator=options.frame.separator,
            rank_template=options.frame.rank_template,
        )
        self._passes: _Passes | None = None

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """See `Embedder.embed`.

        Raises:
            ModelNotLoaded: the embedder was closed.
        """
        if self._parts is None:
            raise ModelNotLoaded("The model was closed.")
        if self._passes is None:
            self._passes = _Passes(self.embedding, *self._parts)
        return self._passes.embed(pieces)

    def close(self) -> None:
        """Frees the KV. Weights are freed with their last user. Calling it twice is allowed."""
        if self._passes is not None:
            self._passes.close()
        self._passes = self._parts = None


class _Passes:
    """The decoder of an embedder and the page tables of its KV, from the first pass until `close`."""

    def __init__(
        self, info: EmbeddingInfo, spec: DecoderSpec, weights: Weights, kv_type: KVType, threads: Threads
    ) -> None:
        num_cells = info.max_batch_tokens + (info.max_tokens if info.can_split else 0)
        self._ledger = PageLedger(kv_tokens=num_cells, num_slots=info.num_slots, max_tokens=info.max_tokens)
        self._hidden = np.empty((info.max_batch_tokens, spec.hidden_size), dtype=np.float32)
        self._no_logits = np.empty((0, spec.vocab_size), dtype=np.float32)
        pooled = spec.pooled
        self._pool = Pool((pooled and pooled.pooling) or info.pooling, spec.hidden_size)
        self._dense = None if pooled is None else DenseLayers(pooled, weights, spec.norm_eps)
        try:
            self._decoder = _native.Decoder(
                describe(spec, weights.layout, info.max_tokens),
                weights.memory,
                num_pages=self._ledger.num_pages,
                num_states=info.num_slots if spec.state_bytes else 0,
                max_batch_tokens=info.max_batch_tokens,
                num_threads=threads.count,
                kv_type=kv_type,
                cores=threads.cores,
                cpus=threads.cpus,
            )
        except MemoryError as error:
            message = f"the KV of {num_cells} tokens to embed does not fit into memory. Lower --ctx-size."
            raise ResourceExhausted(message) from error
        self.close = self._decoder.close

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        for piece in pieces:
            if piece.start == 0:
                self._ledger.truncate(piece.slot, 0)
            assert piece.start == self._ledger.length(piece.slot), f"a hole or an overlap in slot {piece.slot}"
            self._ledger.prepare(piece.slot, piece.end)
            self._ledger.commit(piece.slot, piece.end)
        is_computed = False
        try:
            hidden = self._compute(pieces)
            is_computed = True
        except (MemoryError, RuntimeError) as error:
            raise BackendError(f"the forward pass failed: {error}") from error
        finally:
            for piece in pieces:
                if piece.slot or piece.is_last or not is_computed:
                    self._ledger.truncate(piece.slot, 0)
        found = self._pool.push(pieces, hidden)
        return found if self._dense is None else self._dense.apply(found)

    def _compute(self, pieces: Sequence[Piece]) -> Embeddings:
        tokens = np.array([entry for piece in pieces for entry in piece.entries], dtype=np.int32)
        chunks = np.array([(piece.slot, piece.start, len(piece.entries), 0) for piece in pieces], dtype=np.int32)
        hidden = self._hidden[: len(tokens)]
        self._decoder.forward(tokens, chunks, self._ledger.tables, self._no_logits, hidden)
        return hidden


class DenseLayers:
    """The dense layers after pooling. The result of a row does not depend on other rows.

    Args:
        pooled: the description of the layers.
        weights: packed weights that contain the matrices.
        eps: epsilon of the norms.
    """

    def __init__(self, pooled: Pooled, weights: Weights, eps: float) -> None:
        self._dense = [_Loaded(dense, weights, eps) for dense in pooled.dense]
        self._is_classifier = pooled.is_classifier

    def apply(self, rows: Embeddings) -> Embeddings:
        """Maps pooled rows `(n, hidden_size)` to embeddings `(n, size)`. For a classifier `size` is 1: the log odds of
        its first label against all other labels together, or the raw output of a single label.
        """
        for dense in self._dense:
            rows = dense.apply(rows)
        if not self._is_classifier or rows.shape[1] == 1:
            return rows
        scores = rows.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # weights may be NaN; then the score is NaN
            others = np.logaddexp.reduce(scores[:, 1:], axis=1)
            return (scores[:, 0] - others).astype(np.float32)[:, None]


class _Loaded:
    """One dense layer with a view of its packed weights."""

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
