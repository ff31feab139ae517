"""One `llama_context`: its KV cells, its sequences, and the forward pass over a ragged batch. It schedules nothing."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, addressof, c_float, c_int8, c_int32
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Logits
from stoker.backends.llama.control import ControlVector
from stoker.backends.llama.hybrid_bytes import HybridBytes
from stoker.backends.llama.kv_bytes import SequenceBytes
from stoker.backends.llama.native import library, log_lines
from stoker.backends.llama.options import AttentionOptions
from stoker.backends.llama.pieces import pieces
from stoker.backends.llama.weights import Weights
from stoker.core.batch import AdapterSet, Chunk
from stoker.core.media import RowPiece
from stoker.core.stages import Mark, no_mark
from stoker.core.tiers import KVBytes
from stoker.errors import AdapterInvalid, BackendError, ConfigError, ModelUnsupported, ResourceExhausted

MAX_SEQUENCES = 256
"""libllama's compiled-in limit (LLAMA_MAX_SEQ)."""

# libllama writes tens of bytes of metadata per cell before it finds out that the KV itself does not fit.
_MAX_CELLS = 2**24
_CELL_PADDING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSize:
    """The sizes of a context. Fields named `…_tokens` count tokens."""

    num_slots: int
    kv_tokens: int
    max_batch_tokens: int
    max_ubatch_tokens: int
    """At least the rows of an image with bidirectional attention; otherwise libllama aborts the process."""
    num_threads: int
    rotates_by_places: bool = False
    """Whether all rows of an image share one position and differ by their places in the image (M-RoPE)."""


class Context:
    """Owns one `llama_context` and the arrays that its batches are written to.

    ```
    slot       0   1  …  n-1 | n   n+1 …  2n-1        (second half: only for sliding-window models)
    sequence   the slots     | a twin of each slot, always with the same cells
    ```

    If ranges of positions can be exported, one additional sequence is used for exports and imports.

    libllama reuses a cell that has left the window of its only sequence for any other sequence, even with a full-size
    cache; if the first sequence was then cut back, it would read KV of another sequence. A twin makes every cell
    shared, and libllama never reuses shared cells.

    Raises:
        ResourceExhausted: the KV cache or the compute buffers do not fit in memory.
        ConfigError: the KV cache type cannot be used.
        ModelUnsupported: the model has no KV cache.
    """

    def __init__(
        self,
        weights: Weights,
        size: ContextSize,
        mark: Mark = no_mark,
        *,
        attention: AttentionOptions | None = None,
        control: ControlVector | None = None,
    ) -> None:
        self._mark = mark
        lib = library()
        self._lib = lib
        self._weights = weights
        self._twin_offset = size.num_slots if weights.has_sliding_window else 0
        # Not a bound method: its holders must not keep the context, and so the weights, alive.
        self._sequences = partial(_sequences_of, self._twin_offset)
        num_sequences = size.num_slots + self._twin_offset
        has_ranges = not size.rotates_by_places and (weights.has_state_apart or not weights.is_recurrent)
        has_state_apart = has_ranges and weights.has_state_apart
        self._lengths: dict[int, int] | None = {} if size.rotates_by_places or has_state_apart else None
        """Number of entries in each slot; None = the last position of a slot tells it."""
        scratch = num_sequences if has_ranges else None
        num_sequences += scratch is not None
        self._pointer = _create(weights, size, attention or AttentionOptions(), num_sequences=num_sequences)
        self.close = weakref.finalize(self, lib.llama_free, self._pointer)
        if control is not None:
            control.apply(self._pointer)
        self.adapters = LoraAdapters(weights, self._pointer)
        self._memory = lib.llama_get_memory(self._pointer)
        if not self._memory:
            raise ModelUnsupported(
                f"{weights.path} ({weights.architecture}) has no KV cache, so it cannot generate text."
            )
        self._kv_bytes = (HybridBytes if has_state_apart else SequenceBytes)(
            self._pointer,
            self._memory,
            self._sequences,
            scratch,
            weights.window,
            counts_entries=not size.rotates_by_places,
        )
        self._vocab_size: int = lib.llama_vocab_n_tokens(weights.vocab)
        self._max_tokens = size.max_batch_tokens
        self._input = _BatchArrays(size, self._twin_offset)
        self.rows: dict[bytes, NDArray[np.float32]] = {}
        """The rows of spans that chunks may name, by the key of the span."""
        self._no_rows = np.empty((0, self._vocab_size), dtype=np.float32)
        self._rows = self._no_rows
        self._rows_address = 0

    def decode(self, chunks: Sequence[Chunk]) -> Logits:
        """Computes all chunks, without the GIL, and returns the logits that they ask for, in the order of the chunks.

        It calls `llama_decode` once for all chunks of tokens, and once for each part of a chunk with rows of images.

        Raises:
            BackendError: the pass failed; every slot has its previous length, or is empty if its last position does not
                tell its length.
        """
        if not chunks:
            return self._no_rows
        assert len({chunk.adapters for chunk in chunks}) == 1, "one context, one set of adapters"
        self.adapters.use(chunks[0].adapters)
        try:
            if any(chunk.rows for chunk in chunks):
                logits = self._decode_parts(chunks)
            else:
                num_rows = self._input.fill(chunks)
                logits = self._run(self._input.batch, num_rows)
        except BackendError:
            for chunk in chunks:
                self._remove(chunk.slot, chunk.start if self._lengths is None else 0)
            raise
        if self._lengths is not None:
            self._lengths |= {chunk.slot: chunk.end for chunk in chunks}
        return logits

    def _decode_parts(self, chunks: Sequence[Chunk]) -> Logits:
        """Computes chunks with rows part by part, because a call of libllama takes either token ids or rows."""
        found: dict[int, list[Logits]] = {chunk.slot: [] for chunk in chunks}
        if texts := [chunk for chunk in chunks if not chunk.rows]:
            logits = self._run(self._input.batch, self._input.fill(texts)).copy()
            ends = np.cumsum([chunk.num_logits for chunk in texts])[:-1]
            found |= {chunk.slot: [part] for chunk, part in zip(texts, np.split(logits, ends), strict=True)}
        for chunk in chunks:
            for part, piece in pieces(chunk) if chunk.rows else ():
                if piece is None:
                    logits = self._run(self._input.batch, self._input.fill([part]))
                else:
                    rows = self.rows[piece.span.key][piece.first : piece.first + piece.length]
                    with self._seeing_whole(piece.span.is_whole):
                        logits = self._run(self._input.rows_batch, self._input.fill_rows(part, piece, rows))
                found[chunk.slot].append(logits.copy())
        return np.concatenate([part for chunk in chunks for part in found[chunk.slot]])

    @contextmanager
    def _seeing_whole(self, is_whole: bool) -> Generator[None]:
        """With `is_whole`, entries that are computed inside the block have bidirectional attention to each other."""
        if not is_whole:
            yield
            return
        self._lib.llama_set_causal_attn(self._pointer, False)
        try:
            yield
        finally:
            self._lib.llama_set_causal_attn(self._pointer, True)

    def _run(self, batch: Any, num_rows: int) -> Logits:
        self._mark("bind")
        with log_lines.capture_errors() as errors:
            code = self._lib.llama_decode(self._pointer, batch)
        if code != 0:
            raise _decode_error(code, errors)
        return self._logits(num_rows)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Shares entries `0 … length-1` of slot `source` with the empty slot `target`; it uses no cells."""
        assert self.length(target) == 0, f"slot {target} is not empty"
        assert length <= self.length(source), f"slot {source} has no {length} entries"
        if self._lengths is not None:
            assert length == self.length(source), "only whole slots are copied"
            self._lengths[target] = length
        for sequence in self._sequences(target):
            self._lib.llama_memory_seq_cp(self._memory, source, sequence, 0, length)

    def export_kv(self, slot: int, start: int, end: int, *, has_state: bool) -> KVBytes:
        """See `SequenceBytes.export`."""
        return self._kv_bytes.export(slot, start, end, has_state=has_state)

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool) -> None:
        """See `SequenceBytes.import_`."""
        self._kv_bytes.import_(slot, start, end, state, has_state=has_state)
        if self._lengths is not None:
            self._lengths[slot] = end

    def truncate(self, slot: int, length: int) -> None:
        """Cuts slot `slot` back to its first `length` entries.

        Raises:
            BackendError: this kind of memory cannot be cut there. Emptying a slot never fails.
        """
        if not self._remove(slot, length):
            raise BackendError(f"slot {slot} cannot be truncated to {length} tokens")

    def length(self, slot: int) -> int:
        """Number of entries that the slot holds."""
        if self._lengths is not None:
            return self._lengths.get(slot, 0)
        return self._lib.llama_memory_seq_pos_max(self._memory, slot) + 1

    def _remove(self, slot: int, start: int) -> bool:
        if self._lengths is not None:
            if start == self.length(slot):
                return True
            assert start == 0, "a slot is cut nowhere else"
            self._lengths.pop(slot, None)
        removed = [self._lib.llama_memory_seq_rm(self._memory, s, start, -1) for s in self._sequences(slot)]
        return all(removed)

    def _logits(self, num_rows: int) -> Logits:
        if num_rows == 0:
            # Waits for the computation nevertheless, so that its time counts for this step.
            self._lib.llama_synchronize(self._pointer)
            return self._no_rows
        first = self._lib.llama_get_logits(self._pointer)
        if not first:
            raise BackendError("the forward pass left no logits")
        address = addressof(first.contents)
        if address != self._rows_address:
            self._rows = np.ctypeslib.as_array(first, shape=(self._max_tokens, self._vocab_size))
            self._rows_address = address
        return self._rows[:num_rows]


class _BatchArrays:
    """A `llama_batch` that points to numpy arrays, so that a few slice assignments write a chunk."""

    def __init__(self, size: ContextSize, twin_offset: int) -> None:
        capacity = size.max_batch_tokens
        self._token = np.zeros(capacity, dtype=np.int32)
        self._num_places = 4 if size.rotates_by_places else 1
        self._position = np.zeros(capacity * self._num_places, dtype=np.int32)
        self._wants_logits = np.zeros(capacity, dtype=np.int8)
        self._sequences = np.zeros(capacity, dtype=np.uintp)
        self._num_sequences = np.full(capacity, 2 if twin_offset else 1, dtype=np.int32)
        self._count_up = np.arange(size.kv_tokens + capacity, dtype=np.int32)
        slots = np.arange(size.num_slots, dtype=np.int32)
        self._sequences_of_slot = np.ascontiguousarray(np.stack([slots, slots + twin_offset], axis=1))
        row_bytes = self._sequences_of_slot.strides[0]
        self._address_of_slot = [self._sequences_of_slot.ctypes.data + slot * row_bytes for slot in range(len(slots))]
        self.batch, self.rows_batch = self._as_llama_batch(), self._as_llama_batch()
        self.batch.token = self._token.ctypes.data_as(POINTER(c_int32))
        self._rows: NDArray[np.float32] | None = None
        """The rows that `rows_batch` points to, kept alive."""

    def _as_llama_batch(self) -> Any:
        batch = library().llama_batch()
        batch.pos = self._position.ctypes.data_as(POINTER(c_int32))
        batch.n_seq_id = self._num_sequences.ctypes.data_as(POINTER(c_int32))
        batch.seq_id = self._sequences.ctypes.data_as(POINTER(POINTER(c_int32)))
        batch.logits = self._wants_logits.ctypes.data_as(POINTER(c_int8))
        return batch

    def fill(self, chunks: Sequence[Chunk]) -> int:
        """Writes the chunks one after the other; returns how many rows of logits they ask for."""
        num_rows = first = 0
        self._wants_logits.fill(0)
        for chunk in chunks:
            behind = first + len(chunk.entries)
            self._token[first:behind] = chunk.entries
            self._place(chunk, first, behind)
            num_rows += chunk.num_logits
            first = behind
        self.batch.n_tokens = first
        return num_rows

    def fill_rows(self, chunk: Chunk, piece: RowPiece, rows: NDArray[np.float32]) -> int:
        """Writes a chunk whose entries are these rows; returns how many rows of logits it asks for."""
        self._wants_logits.fill(0)
        self._place(chunk, 0, len(rows))
        if self._num_places > 1:
            self._position[: self._num_places * len(rows)] = _places(piece)
        self._rows = np.ascontiguousarray(rows, dtype=np.float32)
        self.rows_batch.embd = self._rows.ctypes.data_as(POINTER(c_float))
        self.rows_batch.n_tokens = len(rows)
        return chunk.num_logits

    def _place(self, chunk: Chunk, first: int, behind: int) -> None:
        start = chunk.start + chunk.shift
        self._position[first:behind] = self._count_up[start : start + behind - first]
        self._sequences[first:behind] = self._address_of_slot[chunk.slot]
        if chunk.num_logits:
            self._wants_logits[behind - chunk.num_logits : behind] = 1


def _places(piece: RowPiece) -> NDArray[np.int32]:
    """M-RoPE positions as libllama takes them: the times of all rows, their lines, their columns, and unused zeros."""
    index = np.arange(piece.first, piece.first + piece.length, dtype=np.int32)
    if piece.span.grid is None:
        time = line = column = piece.position + index
    else:
        columns, _ = piece.span.grid
        time, line, column = (piece.position + part for part in (0 * index, index // columns, index % columns))
    return np.concatenate([time, line, column, 0 * index])


def _sequences_of(twin_offset: int, slot: int) -> tuple[int, ...]:
    return (slot, slot + twin_offset) if twin_offset else (slot,)


def _create(weights: Weights, size: ContextSize, attention: AttentionOptions, *, num_sequences: int) -> int:
    lib = library()
    if size.kv_tokens > _MAX_CELLS:
        raise _no_room(size, f"more than {_MAX_CELLS} cells")
    params = lib.llama_context_default_params()
    params.n_ctx = -(-size.kv_tokens // _CELL_PADDING) * _CELL_PADDING
    # The output buffer has a row per sequence at least, and libllama aborts if the batch is smaller than that.
    params.n_batch = max(size.max_batch_tokens, num_sequences)
    params.n_ubatch = size.max_ubatch_tokens
    params.n_seq_max = num_sequences
    params.n_threads = params.n_threads_batch = size.num_threads
    attention.apply(lib, params)
    params.kv_unified = True
    params.swa_full = True
    params.no_perf = True
    with log_lines.capture_errors() as errors:
        pointer = lib.llama_init_from_model(weights.pointer, params)
    if not pointer:
        raise _no_room(size, "; ".join(errors) or "no reason given")
    assert lib.llama_n_batch(pointer) >= size.max_batch_tokens
    return pointer


def _no_room(size: ContextSize, reason: str) -> ResourceExhausted | ConfigError:
    if "cache type" in reason:
        return ConfigError(f"this KV cache type cannot be used: {reason}", key="cache_type_k")
    return ResourceExhausted(
        f"A context with {size.kv_tokens} KV tokens cannot be created ({reason}). Lower --kv-tokens or --ctx-size.",
        kv_tokens=size.kv_tokens,
    )


def _decode_error(code: int, errors: list[str]) -> BackendError:
    reason = {1: "no free KV cells for the batch", 2: "aborted"}.get(code, "; ".join(errors) or "no reason given")
    return BackendError(f"libllama's forward pass failed with code {code}: {reason}", native_code=code)


_MEMORY_MARKS = ("unable to allocate", "failed to allocate", "bad_alloc", "out of memory")


class LoraAdapters:
    """The LoRA adapters that are loaded for one model, and the adapter set that is active in one context.

    Args:
        weights: the weights of the model.
        context: the `llama_context`; its owner outlives this object.
    """

    def __init__(self, weights: Weights, context: int) -> None:
        self._lib = library()
        self._weights = weights
        self._context = context
        self._loaded: dict[str, _Adapter] = {}
        self._present: AdapterSet = ()

    def load(self, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        assert key not in self._loaded, "loaded twice"
        self._loaded[key] = _Adapter(self._weights, path)

    def unload(self, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        if any(key == present for present, _ in self._present):
            self.use(())
        self._loaded.pop(key).free()

    def use(self, adapters: AdapterSet) -> None:
        """Makes these adapters apply to everything that is computed from now on.

        Raises:
            BackendError: libllama refuses the set.
        """
        if adapters == self._present:
            return
        pointers = [self._loaded[key].pointer for key, _ in adapters]
        handles = (self._lib.llama_adapter_lora_p_ctypes * len(pointers))(*pointers)
        scales = (c_float * len(pointers))(*(scale for _, scale in adapters))
        if self._lib.llama_set_adapters_lora(self._context, handles, len(pointers), scales):
            raise BackendError("libllama refuses a set of adapters")
        self._present = adapters


class _Adapter:
    """Owns one `llama_adapter_lora`, which belongs to a model and must not outlive it."""

    def __init__(self, weights: Weights, path: Path) -> None:
        lib = library()
        self._weights = weights
        with log_lines.capture_errors() as errors:
            self.pointer: Any = lib.llama_adapter_lora_init(weights.pointer, os.fsencode(path))
        if not self.pointer:
            raise _load_error(path, "; ".join(errors) or "no reason given")
        self.free = weakref.finalize(self, _free, weights, self.pointer)


def _free(weights: Weights, pointer: Any) -> None:
    """Frees an adapter; the argument `weights` keeps the model alive until then."""
    assert weights.pointer
    library().llama_adapter_lora_free(pointer)


def _load_error(path: Path, reason: str) -> AdapterInvalid | ResourceExhausted:
    message = f"libllama cannot load the adapter {path}: {reason}"
    if any(mark in reason for mark in _MEMORY_MARKS):
        return ResourceExhausted(message, path=str(path))
    return AdapterInvalid(message, path=str(path))
