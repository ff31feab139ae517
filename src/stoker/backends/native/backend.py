"""The native backend: GGUF models on this machine's CPU, with Stoker's own kernels. It decides nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.base import Logits
from stoker.backends.cores import usable_cores
from stoker.backends.native.adapters import NativeAdapters, OpenFile
from stoker.backends.native.architectures import describe_decoder
from stoker.backends.native.decoder import describe
from stoker.backends.native.embedder import EmbedderOptions, NativeEmbedder
from stoker.backends.native.file import ModelFile, ModelParts
from stoker.backends.native.kv_types import KVType, choose_kv_type, element_bytes
from stoker.backends.native.layout import Layout, plan_layout
from stoker.backends.native.pages import PAGE_TOKENS, PageLedger, num_pages, pages_for
from stoker.backends.native.spec import DecoderSpec
from stoker.backends.native.threads import Threads, plan_threads
from stoker.backends.native.weights import PackProgress, Weights, load_weights
from stoker.backends.sizes import check_sizes, num_threads
from stoker.core.batch import Batch, CacheOp, Chunk, CopyPrefix
from stoker.core.embedding import Pooling
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.stages import Mark, no_mark
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.errors import BackendError, ConfigError, ModelNotLoaded, ResourceExhausted

_KV_VERSION = 1
_TILE_ROWS = 16
"""Of the kernels' activation tiles; a part of one costs nearly as much as all of it."""
_PACKED_DIRECTORY_BYTES = 64 << 30
_SPAN_TOKENS, _MAX_SPAN_BYTES, _PIECES_PER_THREAD, _ATTENTION_ROWS = 512, 16 << 20, 4, 64
"""How attention to a long past is cut into pieces: native/attention.hpp and plan.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOptions:
    """How a model is loaded.

    Raises:
        ConfigError: a number is out of its range.
    """

    context_size: int
    """Longest single sequence, in tokens."""
    kv_tokens: int
    """Cells of the pool that all sequences share, in tokens."""
    num_slots: int = 64
    """Most sequences that hold KV, running and retained."""
    max_batch_tokens: int = 512
    """Most entries of one forward pass."""
    threads: int | None = None
    """CPU threads of the forward pass, 1 … 512. None = one per core that this process may use."""
    kv_type: KVType | None = None
    """Of the elements of keys and values; i16 and q16: 16 bits, with a scale for each vector; q8: 8 bits, with one for
    each 32. Not given: i16 or q16 where the kernels of this CPU are faster with it, else f16."""
    packed_directory: Path | None = None
    """Where packed weights are kept for the next start and for other processes; None = in memory alone."""
    packed_directory_bytes: int = _PACKED_DIRECTORY_BYTES
    """How much the directory may hold; what was not used for longest goes."""
    pooling: Pooling = Pooling.MEAN
    """How sequences are embedded."""
    embedding_suffix: tuple[int, ...] = ()
    """Token ids that the model wants behind every sequence that is embedded."""

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.kv_type is not None and self.kv_type not in get_args(KVType):
            raise ConfigError(f"`kv_type` must be f32, f16, q8, q16 or i16, not {self.kv_type}", parameter="kv_type")


def kv_element_bytes(files: Sequence[ModelFile], kv_type: KVType | None) -> float:
    """What one number of keys and values takes, its share of scales included.

    Args:
        files: all parts of the model, open.
        kv_type: as in `NativeOptions`.

    Raises:
        ConfigError: the model cannot be kept so.
        ModelUnsupported: this backend does not run it.
        ModelFileInvalid: the file contradicts itself.
    """
    head_sizes = describe_decoder(ModelParts(files), 1).head_sizes
    chosen = choose_kv_type(kv_type, max(head_sizes))
    return max(element_bytes(chosen, head_size) for head_size in head_sizes)


def spare_kv_tokens(num_slots: int) -> int:
    """What pages take beyond the cells of the pool, at most, in tokens."""
    return num_pages(kv_tokens=1, num_slots=num_slots) * PAGE_TOKENS


def context_bytes(files: Sequence[ModelFile], threads: int | None, num_slots: int) -> Callable[[int], int]:
    """What a context of so many positions takes besides KV: tables of rotations and of pages, and places for what
    attention finds.

    Args:
        files: all parts of the model, open.
        threads: as in `NativeOptions`.
        num_slots: as in `NativeOptions`.

    Raises:
        ModelUnsupported: this backend does not run it.
        ModelFileInvalid: the file contradicts itself.
    """
    spec = describe_decoder(ModelParts(files), 1)
    most_shared = max(layer.heads.num // layer.heads.num_kv for layer in spec.layers)
    rows = (threads or usable_cores()) * max(_ATTENTION_ROWS, most_shared)
    span_bytes = _PIECES_PER_THREAD * rows * 4 * (max(spec.head_sizes) + _TILE_ROWS)

    def needed(num_positions: int) -> int:
        spans = min(_MAX_SPAN_BYTES, (num_positions // _SPAN_TOKENS + 1) * span_bytes)
        tables = num_positions * sum(4 * rope.dim for rope in spec.ropes) + 4 * num_slots * pages_for(num_positions)
        return tables + spans

    return needed


def check_supported(files: Sequence[ModelFile]) -> None:
    """Whether this backend runs a model, before anything is loaded.

    Args:
        files: all parts of the model, open.

    Raises:
        ModelUnsupported: it does not; the message says why.
        ModelFileInvalid: the file contradicts itself.
    """
    _plan(files, context_size=1)


class NativeBackend:
    """A GGUF model on Stoker's own kernels: one pool of KV pages, many sequences. Satisfies `Backend`, `KVPort`,
    `MaximaPort` and `AdapterPort`; a step may mix adapters.

    Logits of a sequence do not depend on its batch-mates and their adapters, on how its prompt was cut into chunks, on
    what was cached or on the number of threads: they are the same to the bit. For one type of keys and values they are
    so for all kernels, on every CPU.

    Args:
        files: all parts of the model, open; they may be closed afterwards.
        options: sizes.
        eog_token_ids: what the tokenizer says.
        progress: told how far packing is, if the weights must be packed.
        open_file: opens the files of adapters.
        mark: told when a batch has been written to where C++ reads it.

    Raises:
        ModelUnsupported: an architecture, a tensor type or a number that is not known here.
        ModelFileInvalid: the file contradicts itself.
        ConfigError: heads are too large for the type of keys and values that is wanted.
        ResourceExhausted: weights or KV do not fit.
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
    ) -> None:
        spec, layout, parts = _plan(files, options.context_size)
        kv_type = choose_kv_type(options.kv_type, max(spec.head_sizes))
        self._mark = mark
        self._info = _model_info(parts.first.path.stem, spec, options, kv_type, eog_token_ids)
        threads = plan_threads(num_threads(options))
        weights = load_weights(
            parts,
            layout,
            directory=options.packed_directory,
            max_bytes=options.packed_directory_bytes,
            threads=threads.count,
            progress=progress,
        )
        num_positions = self._info.max_sequence_tokens
        self._ledger = PageLedger(kv_tokens=options.kv_tokens, num_slots=options.num_slots, max_tokens=num_positions)
        self._decoder: _native.Decoder | None = _decoder(spec, weights, self._info, self._ledger, kv_type, threads)
        self._page_bytes, self._num_touched = self._decoder.page_bytes, 0
        self._info = replace(self._info, kv_bytes_per_token=self._page_bytes // PAGE_TOKENS)
        self.embedder = NativeEmbedder(spec, weights, _embedder_options(options, kv_type, threads))
        """Its own KV, taken when it is first used."""
        self._adapters = None if open_file is None else NativeAdapters(spec, open_file)
        self._input = _BatchArrays(self._info)
        self._logits: Logits = np.empty((0, spec.vocab_size), dtype=np.float32)
        self._maxima: Logits = np.empty((0, _native.num_maxima(spec.vocab_size)), dtype=np.float32)
        self._rows_of_logits: Logits = self._logits
        self._row_maxima: Logits = self._maxima
        """Of the last batch, both."""

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def kernels(self) -> str:
        """For which instructions of this CPU the kernels are."""
        return self._open_decoder().kernels

    @property
    def maxima(self) -> Logits:
        """See `MaximaPort.maxima`."""
        return self._row_maxima

    @property
    def num_used_pages(self) -> int:
        """Pages of KV that some slot holds."""
        return self._ledger.num_used

    def forward(self, batch: Batch) -> Logits:
        """See `Backend.forward`. After a `BackendError` every slot is as long as the batch's operations left it.

        Raises:
            ModelNotLoaded: the backend was closed.
        """
        decoder = self._open_decoder()
        for op in batch.ops:
            self._apply(op)
        if not batch.chunks:
            return self._rows(0)
        assert batch.num_tokens <= self._info.max_batch_tokens, f"{batch.num_tokens} entries in a batch"
        return self._compute(decoder, batch.chunks)

    def export_kv(self, slot: int, start: int, end: int, take: TakeMemory = new_memory) -> KVBytes:
        """See `KVPort.export_kv`: the whole pages that the positions lie in, one after the other."""
        decoder, size = self._open_decoder(), self._page_bytes
        assert 0 <= start < end <= self._ledger.length(slot), "export beyond the end"
        pages = self._pages(slot, start, end)
        state = take(len(pages) * size)
        for index, page in enumerate(pages):
            decoder.export_page(page, state[index * size : (index + 1) * size])
        return state.toreadonly()

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes) -> None:
        """See `KVPort.import_kv`."""
        decoder = self._open_decoder()
        view, size = memoryview(state).cast("B"), decoder.page_bytes
        first_page = start // PAGE_TOKENS
        if len(view) != (pages_for(end) - first_page) * size:
            raise BackendError(f"{len(view)} bytes are not the KV of the positions {start} … {end - 1}")
        assert self._ledger.length(slot) == start, "a hole or an overlap"
        self._prepare(decoder, slot, end)
        for index, page in enumerate(self._pages(slot, start, end)):
            begin = (first_page + index) * PAGE_TOKENS
            first, last = max(start - begin, 0), min(end - begin, PAGE_TOKENS)
            decoder.import_page(page, view[index * size : (index + 1) * size], first, last)
        self._ledger.commit(slot, end)

    def expect_kv(self, num_bytes: int) -> None:
        """See `KVPort.expect_kv`: touches the pages that are handed out first.

        Memory that nobody has touched yet is emptied by the kernel first, which takes longer than to fill it.
        """
        decoder, first = self._decoder, self._num_touched
        last = min(num_bytes // self._page_bytes, self._ledger.num_pages)
        if decoder is not None and last > first:
            self._num_touched = last
            decoder.touch_pages(first, last)

    def load_adapter(self, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        self._open_adapters().load(self._open_decoder(), key, path)

    def unload_adapter(self, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        self._open_adapters().unload(self._open_decoder(), key)

    def close(self) -> None:
        """Joins the threads and frees the KV; the weights go with their last user. Calling it twice is allowed."""
        self.embedder.close()
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    def __enter__(self) -> NativeBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_decoder(self) -> _native.Decoder:
        if self._decoder is None:
            raise ModelNotLoaded("The model was closed.")
        return self._decoder

    def _open_adapters(self) -> NativeAdapters:
        assert self._adapters is not None, "nobody said how their files are opened"
        return self._adapters

    def _apply(self, op: CacheOp) -> None:
        if isinstance(op, CopyPrefix):
            self._ledger.copy_prefix(op.source, op.target, op.length)
        else:
            self._ledger.truncate(op.slot, op.length)

    def _compute(self, decoder: _native.Decoder, chunks: tuple[Chunk, ...]) -> Logits:
        ledger, is_computed = self._ledger, False
        for copied in ledger.prepare_each(chunks):
            decoder.copy_page(*copied)
        try:
            tokens, rows, num_rows, is_adapted = self._input.fill(chunks)
            logits = self._rows(num_rows)
            adapters, scales = self._open_adapters().uses(chunks) if is_adapted else (None, None)
            self._mark("bind")
            decoder.forward(tokens, rows, ledger.tables, logits, maxima=self.maxima, adapters=adapters, scales=scales)
            is_computed = True
        except (MemoryError, RuntimeError) as error:
            raise BackendError(f"the forward pass failed: {error}") from error
        finally:
            self._mark("forward")
            if is_computed:
                ledger.commit_each(chunks)
            else:
                for chunk in chunks:
                    ledger.abandon(chunk.slot)
            self._mark("bind")
        return logits

    def _prepare(self, decoder: _native.Decoder, slot: int, end: int) -> None:
        copied = self._ledger.prepare(slot, end)
        if copied is not None:
            decoder.copy_page(*copied)

    def _pages(self, slot: int, start: int, end: int) -> list[int]:
        return self._ledger.tables[slot, start // PAGE_TOKENS : pages_for(end)].tolist()

    def _rows(self, num_rows: int) -> Logits:
        if num_rows == len(self._rows_of_logits):
            return self._rows_of_logits  # a new view takes longer than it seems, so shortly after a forward pass
        if num_rows > len(self._logits):
            logits = np.empty((num_rows, self._logits.shape[1]), dtype=np.float32)
            maxima = np.empty((num_rows, self._maxima.shape[1]), dtype=np.float32)
            self._logits, self._maxima = logits, maxima
        self._rows_of_logits, self._row_maxima = self._logits[:num_rows], self._maxima[:num_rows]
        return self._rows_of_logits


class _BatchArrays:
    """The arrays that C++ reads a batch from, written anew for each."""

    def __init__(self, info: ModelInfo) -> None:
        self._tokens: NDArray[np.int32] = np.zeros(info.max_batch_tokens, dtype=np.int32)
        self._chunks: NDArray[np.int32] = np.zeros((info.num_slots, 4), dtype=np.int32)
        self._sizes = self._tokens.size, len(self._chunks)
        self._views = self._tokens, self._chunks
        """What of them the last batch took."""

    def fill(self, chunks: tuple[Chunk, ...]) -> tuple[NDArray[np.int32], NDArray[np.int32], int, bool]:
        """Token ids `(num_tokens,)`; for each chunk slot, start, length and number of rows; how many rows these are
        together; and whether any of them names adapters.
        """
        num_tokens, num_rows, is_adapted = _native.write_batch(chunks, self._tokens, self._chunks)
        if (num_tokens, len(chunks)) != self._sizes:
            self._sizes = (num_tokens, len(chunks))
            self._views = self._tokens[:num_tokens], self._chunks[: len(chunks)]
        return *self._views, num_rows, is_adapted


def _plan(files: Sequence[ModelFile], context_size: int) -> tuple[DecoderSpec, Layout, ModelParts]:
    parts = ModelParts(files)
    spec = describe_decoder(parts, context_size)
    return spec, plan_layout(spec, parts), parts


def _decoder(
    spec: DecoderSpec, weights: Weights, info: ModelInfo, ledger: PageLedger, kv_type: KVType, threads: Threads
) -> _native.Decoder:
    try:
        return _native.Decoder(
            describe(spec, weights.layout, info.max_sequence_tokens),
            weights.memory,
            num_pages=ledger.num_pages,
            max_batch_tokens=info.max_batch_tokens,
            num_threads=threads.count,
            kv_type=kv_type,
            cores=threads.cores,
            cpus=threads.cpus,
        )
    except MemoryError as error:
        raise ResourceExhausted(
            f"{info.kv_tokens} tokens of KV do not fit into memory; give fewer with --kv-tokens",
            kv_tokens=info.kv_tokens,
        ) from error


def _embedder_options(options: NativeOptions, kv_type: KVType, threads: Threads) -> EmbedderOptions:
    return EmbedderOptions(
        pooling=options.pooling,
        suffix=options.embedding_suffix,
        max_tokens=options.context_size,
        kv_type=kv_type,
        threads=threads,
    )


def _model_info(
    name: str, spec: DecoderSpec, options: NativeOptions, kv_type: KVType, eog_token_ids: frozenset[int]
) -> ModelInfo:
    return ModelInfo(
        name=name,
        architecture=spec.architecture,
        vocab_size=spec.vocab_size,
        eog_token_ids=eog_token_ids,
        trained_context=spec.trained_context,
        context_size=options.context_size,
        kv_tokens=options.kv_tokens,
        num_slots=options.num_slots,
        max_batch_tokens=min(options.max_batch_tokens, options.kv_tokens),
        mixes_adapters=True,
        is_batch_invariant=True,
        traits=CacheTraits(can_truncate=True, can_copy=True, shares_cells=True, can_export=True),
        tile_rows=_TILE_ROWS,
        kv_format=_kv_format(spec, kv_type),
    )


def _kv_format(spec: DecoderSpec, kv_type: KVType) -> str:
    """Keys are kept rotated, and a longer context may rotate them otherwise."""
    digest = hashlib.sha256()
    for rope in spec.ropes:
        digest.update(rope.frequencies.tobytes() + np.float64(rope.magnitude).tobytes())
    return f"native {_KV_VERSION} {kv_type} {digest.hexdigest()[:16]}"
