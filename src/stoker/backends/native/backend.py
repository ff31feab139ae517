"""The native backend: it runs GGUF models on this machine's CPU with Stoker's own kernels. It schedules nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.base import Guess, Logits, most_likely
from stoker.backends.native.adapters import NativeAdapters, OpenFile
from stoker.backends.native.batch_arrays import BatchArrays
from stoker.backends.native.draft_head import HeadInput
from stoker.backends.native.drafter import Drafter, plan_drafter
from stoker.backends.native.embedder import NativeEmbedder
from stoker.backends.native.file import ModelFile, ModelParts
from stoker.backends.native.kv_pages import KVPages
from stoker.backends.native.kv_types import KVType, choose_kv_type, kv_format
from stoker.backends.native.layout import Layout
from stoker.backends.native.model_decoders import HeadParts, open_decoders, open_head, with_sizes
from stoker.backends.native.needs import plan_model
from stoker.backends.native.options import NativeOptions
from stoker.backends.native.pages import PAGE_TOKENS
from stoker.backends.native.spec import DecoderSpec
from stoker.backends.native.state_tails import StateTails
from stoker.backends.native.threads import plan_threads
from stoker.backends.native.weights import PackProgress, Weights, loading
from stoker.backends.native.windows import MAX_DRAFT, plan_windows, window_of
from stoker.backends.sizes import num_threads
from stoker.core.batch import Batch, CacheOp, Chunk, CopyPrefix, Entry
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.stages import Mark, no_mark
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.errors import BackendError, ModelNotLoaded

_TILE_ROWS = 16
"""Rows of one activation tile of the kernels. A partly filled tile costs nearly as much as a full one."""


class NativeBackend:
    """A loaded GGUF model on Stoker's own kernels, with one pool of KV pages. A step may mix adapters. Satisfies
    `Backend`, `KVPort`, `MaximaPort`, `RowsPort`, `AdapterPort`, `LendingPort`, with a draft head `DraftHeadPort`.

    Logits of a sequence are the same to the bit whatever else is in the batch, with whatever adapters, however its
    prompt was cut into chunks, whatever was cached, and for every number of threads. For one KV cache type they are
    the same with all kernels, on every CPU.

    Args:
        files: all parts of the model, open; they may be closed afterwards.
        options: sizes, threads and types.
        eog_token_ids: end-of-generation tokens, as the tokenizer states them.
        progress: called with the progress of packing, if the weights must be packed.
        open_file: opens the files of adapters; None = adapters cannot be loaded.
        mark: called when a stage of a pass ends, such as when a batch was written to where C++ reads it.
        draft_files: all parts of a model that drafts for this one from its hidden states, open; it replaces a draft
            head in `files`.

    Raises:
        ModelUnsupported: the architecture, a tensor type or a hyperparameter is not supported here.
        ModelFileInvalid: the file contradicts itself.
        ConfigError: attention heads are too large for the KV cache type that is asked for.
        ResourceExhausted: there is no memory for the weights or for the KV.
    """

    def __init__(
        self,
        files: Sequence[ModelFile],
        options: NativeOptions,
        *,
        eog_token_ids: frozenset[int] = frozenset(),
        progress: PackProgress | None = None,
        open_file: OpenFile | None = None,
        mark: Mark = no_mark,
        draft_files: Sequence[ModelFile] = (),
    ) -> None:
        spec, layout, parts = plan_model(files, options.context_size)
        drafter = plan_drafter(draft_files, spec, layout, options.context_size) if draft_files else None
        kv_type = choose_kv_type(options.kv_type, spec.largest_head)
        self._mark = mark
        self.info = _model_info(parts.first.path.stem, spec, options, kv_type, eog_token_ids)
        threads = plan_threads(num_threads(options))
        load = loading(options, threads, progress)
        weights = load(parts, layout)
        head = _head_parts(spec, drafter, options, weights, load)
        self._weights = [weights] if head is None else [weights, head.weights]
        self._pages = KVPages.plan(self.info, window_of(spec))
        decoders = open_decoders(spec, head, weights, self.info, self._pages, kv_type, threads)
        decoder = decoders[0]
        self._decoders = [part for part in decoders if part.page_bytes]
        """The decoders that keep keys and values in pages: of the model, then of its draft head. A page of KV consists
        of one part for each, in this order. Empty for a model without attention."""
        self._decoder: _native.Decoder | None = decoder
        self._page_bytes, self._num_touched = sum(part.page_bytes for part in self._decoders), 0
        self._state_bytes = decoder.state_bytes
        self._tails = StateTails(decoder) if self._state_bytes else None
        self.info = with_sizes(self.info, decoders, head)
        self.embedder = NativeEmbedder(spec, weights, options, kv_type, threads)
        """Computes embeddings with the same weights. Its KV is separate, and allocated on its first use."""
        self._adapters = None if open_file is None else NativeAdapters(spec, open_file)
        self._input = BatchArrays(self.info, spec.row_width, has_axes=any(rope.axes for rope in spec.ropes))
        around = (self.info, self._input, self._pages, self._decoders)
        self._head = None if head is None else open_head(decoders[1], head, *around)
        self.row_width = spec.row_width
        """See `RowsPort`."""
        self._logits: Logits = np.empty((0, spec.vocab_size), dtype=np.float32)
        self._maxima: Logits = np.empty((0, _native.num_maxima(spec.vocab_size)), dtype=np.float32)
        self._rows_of_logits: Logits = self._logits
        self.maxima: Logits = self._maxima
        """See `MaximaPort.maxima`. As `_rows_of_logits`, a view of the rows of the last batch."""

    @property
    def kernels(self) -> str:
        """The name of the instruction set (AVX-512, NEON, …) whose kernels run on this CPU."""
        return self._open_decoder().kernels

    @property
    def num_used_pages(self) -> int:
        """Pages of KV that some slot holds."""
        return self._pages.num_used

    def forward(self, batch: Batch) -> Logits:
        """See `Backend.forward`. After a `BackendError` every slot has the length that the batch's operations gave it.

        Raises:
            ModelNotLoaded: the backend was closed.
        """
        decoder = self._open_decoder()
        for op in batch.ops:
            self._apply(decoder, op)
        if not batch.chunks:
            return self._rows(0)
        assert batch.num_tokens <= self.info.max_batch_tokens, f"{batch.num_tokens} entries in a batch"
        return self._compute(decoder, batch.chunks, are_drafts=batch.num_drafted > 0)

    def export_kv(
        self, slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True
    ) -> KVBytes:
        """See `KVPort.export_kv`. The bytes are the whole pages that contain the positions, and then the state."""
        decoder = self._open_decoder()
        assert 0 <= start < end <= self._pages.length(slot), "export beyond the end"
        if self._tails is not None and has_state:
            self._cut(slot, end)
            self._settle(decoder, self._tails, (slot,))
        if self._head is not None:
            self._head.settle(slot, end)
        num_bytes = self._pages.num_bytes(self._decoders, start, end, has_windows=has_state)
        state = take(num_bytes + (self._state_bytes if has_state else 0))
        self._pages.export(self._decoders, slot, start, end, state[:num_bytes], has_windows=has_state)
        if len(state) > num_bytes:
            decoder.export_state(slot, state[num_bytes:])
        return state.toreadonly()

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """See `KVPort.import_kv`."""
        decoder, view = self._open_decoder(), memoryview(state).cast("B")
        num_bytes = self._pages.num_bytes(self._decoders, start, end, has_windows=has_state)
        if len(view) != num_bytes + (self._state_bytes if has_state else 0):
            raise BackendError(f"{len(view)} bytes are not the KV of the positions {start} … {end - 1}")
        self._pages.import_(self._decoders, slot, start, end, view[:num_bytes], has_windows=has_state)
        if len(view) > num_bytes:
            decoder.import_state(slot, view[num_bytes:], end)
        if self._head is not None:
            self._head.cut(slot, end)

    def expect_kv(self, num_bytes: int) -> None:
        """See `KVPort.expect_kv`. It touches the memory of the pages that slots will get first.

        The operating system clears memory on its first use, which takes longer than the copy of an import.
        """
        most = self.info.least_kv_tokens // PAGE_TOKENS if self.info.most_kv_tokens else self._pages.num_pages
        first, last = self._num_touched, min(num_bytes // max(1, self._page_bytes), most)
        if self._decoder is not None and last > first:
            self._num_touched = last
            for part in self._decoders:
                part.touch_pages(first, last)

    def give_back_kv(self) -> None:
        """See `LendingPort.give_back_kv`."""
        self._open_decoder()
        self._pages.give_back(self._decoders)

    def check_integrity(self) -> None:
        """Asserts that the page tables of all slots are consistent. Cheap enough for every step under test."""
        self._pages.check_integrity()

    def load_adapter(self, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        self._open_adapters().load(self._open_decoder(), key, path)

    def unload_adapter(self, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        self._open_adapters().unload(self._open_decoder(), key)

    def hold_rows(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """See `RowsPort.hold_rows`."""
        self._input.rows.hold(key, rows)

    def drop_rows(self, key: bytes) -> None:
        """See `RowsPort.drop_rows`."""
        self._input.rows.drop(key)

    @property
    def has_draft_head(self) -> bool:
        """Whether `draft` can be called."""
        return self._head is not None

    def can_draft(self, slot: int) -> bool:
        """See `DraftHeadPort.can_draft`."""
        return self._head is not None and self._head.can_draft(slot)

    def num_waiting(self, slot: int) -> int:
        """See `DraftHeadPort.num_waiting`."""
        return 0 if self._head is None else self._head.num_waiting(slot)

    def draft(self, wanted: Sequence[tuple[int, int, Entry, int]], guess: Guess = most_likely) -> list[list[Entry]]:
        """See `DraftHeadPort.draft`."""
        self._open_decoder()
        assert self._head is not None, "there is no draft head"
        for slot, length, _, _ in wanted:
            self._cut(slot, length)
        try:
            return self._head.draft([(slot, entry, count) for slot, _, entry, count in wanted], guess)
        except (MemoryError, RuntimeError) as error:
            raise BackendError(f"the pass of the draft head failed: {error}") from error

    def close(self) -> None:
        """Joins the threads and frees the KV. Weights are freed with their last user. Calling it twice is allowed."""
        self.embedder.close()
        if self._head is not None:
            self._head.close()
        if self._decoder is not None:
            self._decoder.close()
        self._decoder = None
        for weights in self._weights:
            weights.close()

    def __enter__(self) -> NativeBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_decoder(self) -> _native.Decoder:
        if self._decoder is None:
            raise ModelNotLoaded("The model was closed.")
        return self._decoder

    def _open_adapters(self) -> NativeAdapters:
        assert self._adapters is not None, "no function to open their files was given"
        return self._adapters

    def _apply(self, decoder: _native.Decoder, op: CacheOp) -> None:
        if isinstance(op, CopyPrefix):
            if self._tails is not None:
                assert op.length == self._pages.length(op.source), "a part of a state"
                self._settle(decoder, self._tails, (op.source,))
                decoder.copy_state(op.source, op.target)
            if self._head is not None:
                self._head.copy(op.source, op.target, op.length)
            self._pages.copy_prefix(op.source, op.target, op.length)
        else:
            self._cut(op.slot, op.length)

    def _cut(self, slot: int, length: int) -> None:
        if self._tails is not None and length != self._pages.length(slot):
            self._tails.cut(slot, length)
        self._pages.truncate(slot, length)
        if self._head is not None:
            self._head.cut(slot, length)

    def _compute(self, decoder: _native.Decoder, chunks: tuple[Chunk, ...], *, are_drafts: bool = False) -> Logits:
        pages, is_computed = self._pages, False
        pages.prepare_each(self._decoders, chunks)
        try:
            if self._tails is None:
                logits = self._pass(decoder, chunks)
            else:
                logits = self._pass_with_states(decoder, self._tails, chunks, are_drafts=are_drafts)
            is_computed = True
        finally:
            self._mark("forward")
            if is_computed:
                pages.commit_each(chunks)
            else:
                for chunk in chunks:
                    pages.abandon(chunk.slot)
                    if self._head is not None:
                        self._head.cut(chunk.slot, pages.length(chunk.slot))
            self._mark("bind")
        return logits

    def _pass(self, decoder: _native.Decoder, chunks: tuple[Chunk, ...]) -> Logits:
        try:
            tokens, rows, num_rows, is_adapted, more = self._input.fill(chunks)
            logits = self._rows(num_rows)
            adapters, scales = self._open_adapters().uses(chunks) if is_adapted else (None, None)
            self._mark("bind")
            tables, windows = self._pages.ledger.tables, self._pages.window_tables
            states = HeadInput() if self._head is None else self._head.wanted_states(chunks, len(tokens))
            decoder.forward(
                tokens,
                rows,
                tables,
                logits,
                maxima=self.maxima,
                adapters=adapters,
                scales=scales,
                window_tables=windows,
                **states,
                **more,
            )
            if self._head is not None and states:
                self._head.follow(chunks)
        except (MemoryError, RuntimeError) as error:
            raise BackendError(f"the forward pass failed: {error}") from error
        return logits

    def _pass_with_states(
        self, decoder: _native.Decoder, tails: StateTails, chunks: tuple[Chunk, ...], *, are_drafts: bool
    ) -> Logits:
        whole = tails.with_missing(chunks)
        if sum(len(chunk.entries) for chunk in whole) > self.info.max_batch_tokens:
            self._settle(decoder, tails, [chunk.slot for chunk in chunks])
            whole = chunks
        tails.keep(chunks, are_drafts=are_drafts)
        logits = self._pass(decoder, whole)
        tails.commit(chunks, are_drafts=are_drafts)
        return logits

    def _settle(self, decoder: _native.Decoder, tails: StateTails, slots: Iterable[int]) -> None:
        """Computes the entries that recurrent states lack, in passes of their own."""
        for chunk in tails.missing(slots):
            tails.keep((), are_drafts=False)
            self._pass(decoder, (chunk,))
            tails.commit((chunk,), are_drafts=False)

    def _rows(self, num_rows: int) -> Logits:
        if num_rows == len(self._rows_of_logits):
            return self._rows_of_logits  # to make a view is slow right after a forward pass
        if num_rows > len(self._logits):
            logits = np.empty((num_rows, self._logits.shape[1]), dtype=np.float32)
            maxima = np.empty((num_rows, self._maxima.shape[1]), dtype=np.float32)
            self._logits, self._maxima = logits, maxima
        self._rows_of_logits, self.maxima = self._logits[:num_rows], self._maxima[:num_rows]
        return self._rows_of_logits


def _head_parts(
    spec: DecoderSpec,
    drafter: Drafter | None,
    options: NativeOptions,
    weights: Weights,
    load: Callable[[ModelParts, Layout], Weights],
) -> HeadParts | None:
    """The parts of the draft head: from a file of its own, or from the model's file. None = there is no draft head."""
    if drafter is not None:
        own = load(drafter.parts, drafter.layout)
        return HeadParts(drafter.spec, own, weights, drafter.token_ids, f"the drafter {drafter.digest}")
    if spec.draft_head is None or not options.has_draft_head:
        return None
    return HeadParts(spec.draft_head, weights)


def _batch_tokens(options: NativeOptions) -> int:
    return max(options.max_batch_tokens, options.whole_rows + options.num_slots if options.whole_rows else 0)


def _model_info(
    name: str, spec: DecoderSpec, options: NativeOptions, kv_type: KVType, eog_token_ids: frozenset[int]
) -> ModelInfo:
    windows = plan_windows(spec, options)
    is_whole = spec.state_bytes == 0 and windows is None
    return ModelInfo(
        name=name,
        architecture=spec.architecture,
        vocab_size=spec.vocab_size,
        eog_token_ids=eog_token_ids,
        trained_context=spec.trained_context,
        context_size=options.context_size,
        kv_tokens=options.kv_tokens,
        most_kv_tokens=options.most_kv_tokens if windows is None else 0,
        num_slots=options.num_slots,
        max_batch_tokens=min(_batch_tokens(options), options.kv_tokens),
        mixes_adapters=True,
        is_batch_invariant=True,
        traits=CacheTraits(
            can_truncate=is_whole,
            truncatable_tail=0 if is_whole else MAX_DRAFT,
            can_copy=True,
            copies_whole=not is_whole,
            shares_cells=True,
            can_export=True,
            exports_apart=not is_whole and bool(spec.kv_head_sizes),
        ),
        tile_rows=_TILE_ROWS,
        kv_format=kv_format(spec.ropes, kv_type) + ("" if windows is None else f" window {window_of(spec)}"),
        windows=windows,
    )
