"""Embeddings on libllama: a separate context, with separate KV, over weights that may be shared."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Embeddings
from stoker.backends.llama.control import ControlVector
from stoker.backends.llama.native import library, log_lines
from stoker.backends.llama.weights import Weights
from stoker.backends.pooling import Pool
from stoker.core.embedding import EmbeddingInfo, Piece, Pooling
from stoker.errors import BackendError, ModelNotLoaded, ResourceExhausted

_NUM_SLOTS = 64
_NUM_RECURRENT_SLOTS = 4
"""Slots of a recurrent model: few, because each has a whole state, used or not."""
_BATCH_TOKENS = 512
_MAX_LOGITS = 2**24
"""Limit of the logits of a pass, of which libllama computes a row for every embedded token: at most 64 MiB."""
_CELL_PADDING = 256
_LEAST_PROBABILITY = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderOptions:
    """Options of one embedder."""

    pooling: Pooling
    max_tokens: int
    """Length of the longest sequence, in tokens."""
    keeps_kv: bool
    """Whether the model has a KV cache; an encoder has none."""
    threads: int
    control: ControlVector | None = None


class LlamaEmbedder:
    """Computes embeddings with the weights of one model; satisfies `Embedder`. The first pass creates its context."""

    def __init__(self, weights: Weights, options: EmbedderOptions) -> None:
        self._weights: Weights | None = weights
        self._options = options
        self.embedding = _describe(weights, options)
        self._context: _Context | None = None

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """See `Embedder.embed`.

        Raises:
            ResourceExhausted: there is no memory for the context.
            ModelNotLoaded: the embedder was closed.
        """
        if self._weights is None:
            raise ModelNotLoaded("The model was closed.")
        if self._context is None:
            self._context = _Context(self._weights, self.embedding, self._options)
        return self._context.embed(pieces)

    def close(self) -> None:
        """Frees the context. Weights are freed with their last user. Calling it twice is allowed."""
        if self._context is not None:
            self._context.close()
        self._context = self._weights = None


class _Context:
    """The `llama_context` and the `llama_batch` of an embedder, from the first pass until `close`.

    libllama pools only within one micro-batch, and sequences may be longer. So libllama returns the hidden states of
    every token, and this class pools them. Only `Pooling.RANK`, which needs weights, is pooled by libllama.
    """

    def __init__(self, weights: Weights, info: EmbeddingInfo, options: EmbedderOptions) -> None:
        self._lib: Any = library()
        self._weights = weights
        self._info = info
        self._hidden_size: int = self._lib.llama_model_n_embd_out(weights.pointer)
        self._pointer: int = _create(weights, info, options)
        self._close_context = weakref.finalize(self, self._lib.llama_free, self._pointer)
        if options.control is not None:
            options.control.apply(self._pointer)
        self._memory: int | None = self._lib.llama_get_memory(self._pointer)
        self._batch: Any = self._lib.llama_batch_init(info.max_batch_tokens, 0, 1)
        self._close_batch = weakref.finalize(self, self._lib.llama_batch_free, self._batch)
        self._pool = None if info.pooling is Pooling.RANK else Pool(info.pooling, self._hidden_size)

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        if self._memory and pieces[0].slot == 0 and pieces[0].start == 0:
            self._empty(0)
        self._fill(pieces)
        with log_lines.capture_errors() as errors:
            code = self._lib.llama_decode(self._pointer, self._batch)
        if self._memory:
            for piece in pieces:
                if piece.slot or piece.is_last or code:
                    self._empty(piece.slot)
        if code:
            reason = "; ".join(errors) or "no reason given"
            raise BackendError(f"libllama could not embed ({code}): {reason}", native_code=code)
        return self._scores(pieces) if self._pool is None else self._pool.push(pieces, self._hidden())

    def close(self) -> None:
        self._close_batch()
        self._close_context()

    def _empty(self, slot: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def _fill(self, pieces: Sequence[Piece]) -> None:
        count = sum(len(piece.entries) for piece in pieces)
        assert count <= self._info.max_batch_tokens, "libllama would abort the process"
        batch, at = self._batch, 0
        token, position = (np.ctypeslib.as_array(part, shape=(count,)) for part in (batch.token, batch.pos))
        np.ctypeslib.as_array(batch.n_seq_id, shape=(count,)).fill(1)
        np.ctypeslib.as_array(batch.logits, shape=(count,)).fill(1)
        for piece in pieces:
            end = at + len(piece.entries)
            token[at:end] = piece.entries
            position[at:end] = np.arange(piece.start, piece.end)
            for index in range(at, end):
                batch.seq_id[index][0] = piece.slot
            at = end
        batch.n_tokens = count

    def _hidden(self) -> NDArray[np.float32]:
        first = self._lib.llama_get_embeddings(self._pointer)
        if not first:
            raise BackendError("the forward pass left no hidden states")
        return np.ctypeslib.as_array(first, shape=(self._batch.n_tokens, self._hidden_size))

    def _scores(self, pieces: Sequence[Piece]) -> Embeddings:
        found = [self._lib.llama_get_embeddings_seq(self._pointer, piece.slot) for piece in pieces if piece.is_last]
        if not all(found):
            raise BackendError("the forward pass left no scores")
        scores = np.array([score[0] for score in found], dtype=np.float64)
        if self._lib.llama_model_n_cls_out(self._weights.pointer) > 1:
            # libllama applies a softmax to the scores of several labels, and none to the score of a single label.
            scores = np.clip(scores, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
            scores = np.log(scores / (1 - scores))
        return scores.astype(np.float32).reshape(len(found), 1)


def _describe(weights: Weights, options: EmbedderOptions) -> EmbeddingInfo:
    lib = library()
    can_split = options.keeps_kv and weights.is_causal
    vocab_size: int = lib.llama_vocab_n_tokens(weights.vocab)
    affordable = max(32, _MAX_LOGITS // vocab_size) if options.keeps_kv else _BATCH_TOKENS
    batch_tokens = min(_BATCH_TOKENS, affordable)
    suffix, separator = _frame(weights)
    is_rank = options.pooling is Pooling.RANK
    return EmbeddingInfo(
        pooling=options.pooling,
        size=1 if is_rank else lib.llama_model_n_embd_out(weights.pointer),
        max_tokens=options.max_tokens,
        max_batch_tokens=batch_tokens if can_split else max(batch_tokens, options.max_tokens),
        num_slots=_NUM_RECURRENT_SLOTS if weights.is_recurrent else _NUM_SLOTS,
        can_split=can_split,
        suffix=suffix,
        separator=separator,
        rank_template=weights.rank_template() if is_rank else None,
    )


def _frame(weights: Weights) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens at the end of a sequence, and between the texts of a pair: `[SEP]`, or `</s>` and `</s></s>`."""
    lib, vocab = library(), weights.vocab
    eos, sep = lib.llama_vocab_eos(vocab), lib.llama_vocab_sep(vocab)
    end = [eos if eos >= 0 else sep] if lib.llama_vocab_get_add_eos(vocab) else []
    between = [*end, sep] if lib.llama_vocab_get_add_sep(vocab) and sep >= 0 else end
    return tuple(end or between), tuple(between)


def _create(weights: Weights, info: EmbeddingInfo, options: EmbedderOptions) -> int:
    lib = library()
    params = lib.llama_context_default_params()
    cells = info.max_batch_tokens + (info.max_tokens if info.can_split else 0)
    params.n_ctx = -(-cells // _CELL_PADDING) * _CELL_PADDING
    params.n_batch = params.n_ubatch = info.max_batch_tokens
    params.n_seq_max = info.num_slots
    params.n_threads = params.n_threads_batch = options.threads
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
    params.embeddings = True
    is_rank = info.pooling is Pooling.RANK
    params.pooling_type = lib.LLAMA_POOLING_TYPE_RANK if is_rank else lib.LLAMA_POOLING_TYPE_NONE
    params.kv_unified = params.swa_full = params.no_perf = True
    with log_lines.capture_errors() as errors:
        pointer = lib.llama_init_from_model(weights.pointer, params)
    if not pointer:
        reason = "; ".join(errors) or "no reason given"
        message = f"no context for embeddings of {info.max_tokens} tokens can be created ({reason}). Lower --ctx-size."
        raise ResourceExhausted(message)
    return pointer
