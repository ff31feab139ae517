"""The llama backend: it runs the scheduler's batches on libllama. Weights may be shared; the context is its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Logits
from stoker.backends.llama.context import MAX_SEQUENCES, Context, ContextSize
from stoker.backends.llama.control import ControlVector
from stoker.backends.llama.embedder import EmbedderOptions, LlamaEmbedder
from stoker.backends.llama.native import interrupts_held
from stoker.backends.llama.options import AttentionOptions, DeviceOptions
from stoker.backends.llama.tokenizer import LlamaTokenizer
from stoker.backends.llama.weights import LoadOptions, LoadProgress, Weights, load_weights
from stoker.backends.sizes import check_sizes, num_threads
from stoker.core.batch import Batch, CacheOp, CopyPrefix
from stoker.core.embedding import Pooling
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.stages import Mark, no_mark
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.errors import ModelNotLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """The options with which one model is loaded. Immutable.

    Raises:
        ConfigError: a number is out of its range.
    """

    context_size: int
    """Length of the longest single sequence, in tokens."""
    kv_tokens: int
    """Size of the KV pool that all sequences share, in tokens."""
    num_slots: int = 64
    """Most sequences that hold KV at the same time, running and retained; 1 … 255, and at most 127 with sliding-window
    attention."""
    max_batch_tokens: int = 512
    """Most entries of one forward pass."""
    max_ubatch_tokens: int = 512
    """Size of a micro-batch (ubatch): most entries that are computed at once. A larger batch is split.

    Below 64, libllama's CPU attention uses one kernel for every batch, and logits do not depend on the rest of the
    batch (to the bit for weights that are not K-quants; for K-quants only with GGML_CPU_TILED_MM=0 in the environment).
    Long prompts are then computed up to four times slower.
    """
    whole_rows: int = 0
    """Most rows of an image with bidirectional attention, which must be computed at once; 0 = there are none."""
    rotates_by_places: bool = False
    """Whether the model gets images and rotates their rows by their places (M-RoPE). All rows of an image then share
    one position, so a slot can only be copied, exported and emptied as a whole."""
    threads: int | None = None
    """CPU threads of the forward pass, 1 … 512. None = one per core that this process may use."""
    devices: DeviceOptions = field(default_factory=DeviceOptions)
    attention: AttentionOptions = field(default_factory=AttentionOptions)
    control: ControlVector | None = None
    """Control vector that is added to the hidden states of all entries; None = no steering."""
    use_mmap: bool = True
    """Whether the file is mapped into memory instead of read."""
    pooling: Pooling = Pooling.MEAN
    """How the hidden states of a sequence become its embedding."""

    def __post_init__(self) -> None:
        check_sizes(self, "max_ubatch_tokens")


class LlamaBackend:
    """A loaded GGUF model on libllama: one context, many sequences, one pool of KV cells.

    Satisfies `Backend`, `KVPort`, `RowsPort` and `AdapterPort`.

    The arrays that `forward` returns are in libllama's memory: they are invalid after the next `forward` and after
    `close`.

    Args:
        progress: called with the progress of loading the weights.
        mark: called when a batch has been written to where libllama reads it.

    Raises:
        ModelError, ResourceExhausted: see `load_weights` and `Context`.
    """

    def __init__(
        self, path: Path, options: LlamaOptions, *, progress: LoadProgress | None = None, mark: Mark = no_mark
    ) -> None:
        with interrupts_held():
            weights = load_weights(path, LoadOptions(options.devices, options.use_mmap), progress)
            self.tokenizer = LlamaTokenizer(weights)
            self.info = _model_info(path, weights, self.tokenizer, options)
            self.row_width = weights.row_width
            size = _context_size(self.info, options)
            self._context: Context | None = Context(
                weights, size, mark, attention=options.attention, control=options.control
            )
        self.embedder = LlamaEmbedder(
            weights,
            EmbedderOptions(
                pooling=options.pooling,
                max_tokens=self.info.context_size,
                keeps_kv=True,
                threads=size.num_threads,
                control=options.control,
            ),
        )
        """Computes embeddings with the same weights, in a separate context that is created on its first use."""

    def forward(self, batch: Batch) -> Logits:
        """See `Backend.forward`. After a `BackendError` every slot has the length that the batch's operations gave it.

        Raises:
            BackendError: the pass failed, for instance because the pool has no free cells.
            ModelNotLoaded: the backend was closed.
        """
        context = self._open_context()
        assert batch.num_tokens <= self.info.max_batch_tokens, "libllama would abort the process"
        for op in batch.ops:
            self._apply(context, op)
        return context.decode(batch.chunks)

    def export_kv(
        self, slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True
    ) -> KVBytes:
        """See `KVPort.export_kv`."""
        context = self._open_context()
        assert 0 <= start < end <= context.length(slot), f"slot {slot} has no {end} positions"
        traits, length = self.info.traits, context.length(slot)
        assert traits.can_truncate or traits.exports_apart or (start, end) == (0, length), "a part of a state"
        assert traits.can_truncate or not has_state or end == length, "a state of the past"
        return context.export_kv(slot, start, end, has_state=has_state)

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """See `KVPort.import_kv`."""
        context = self._open_context()
        assert context.length(slot) == start, f"slot {slot} holds {context.length(slot)} positions, not {start}"
        context.import_kv(slot, start, end, state, has_state=has_state)

    def expect_kv(self, num_bytes: int) -> None:
        """See `KVPort.expect_kv`. Does nothing, because the context allocated all KV memory when it was created."""

    def hold_rows(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """See `RowsPort.hold_rows`."""
        assert rows.shape[1:] == (self.row_width,), "as wide as the model takes them"
        self._open_context().rows[key] = rows

    def drop_rows(self, key: bytes) -> None:
        """See `RowsPort.drop_rows`."""
        self._open_context().rows.pop(key, None)

    def load_adapter(self, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        self._open_context().adapters.load(key, path)

    def unload_adapter(self, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        self._open_context().adapters.unload(key)

    def _open_context(self) -> Context:
        if self._context is None:
            raise ModelNotLoaded("The model was closed.")
        return self._context

    def _apply(self, context: Context, op: CacheOp) -> None:
        traits = self.info.traits
        if isinstance(op, CopyPrefix):
            assert traits.can_copy, "this model's memory cannot be copied"
            context.copy_prefix(op.source, op.target, op.length)
        else:
            assert traits.can_truncate or op.length == 0, "this model's memory cannot be truncated"
            context.truncate(op.slot, op.length)

    def close(self) -> None:
        """Frees the context. Weights are freed with their last user. Calling it twice is allowed."""
        if self._context is not None:
            self._context.close()
            self._context = None
        self.embedder.close()
        self.tokenizer.close()

    def __enter__(self) -> LlamaBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _model_info(path: Path, weights: Weights, tokenizer: LlamaTokenizer, options: LlamaOptions) -> ModelInfo:
    can_copy = not weights.is_recurrent
    can_cut = can_copy and not options.rotates_by_places
    is_apart = weights.has_state_apart and not options.rotates_by_places
    max_slots = (MAX_SEQUENCES - (can_cut or is_apart)) // (2 if weights.has_sliding_window else 1)
    return ModelInfo(
        name=path.stem,
        architecture=weights.architecture,
        vocab_size=tokenizer.vocab_size,
        eog_token_ids=tokenizer.eog_token_ids(),
        trained_context=weights.trained_context,
        context_size=options.context_size,
        kv_tokens=options.kv_tokens,
        num_slots=min(options.num_slots, max_slots),
        max_batch_tokens=min(_batch_tokens(options), options.kv_tokens),
        traits=CacheTraits(
            can_truncate=can_cut,
            can_copy=can_copy,
            copies_whole=can_copy and not can_cut,
            shares_cells=True,
            can_export=True,
            exports_apart=is_apart,
        ),
        kv_format=_kv_format(options) + (", states apart" if is_apart else ""),
    )


def _batch_tokens(options: LlamaOptions) -> int:
    """Entries of a batch, enough for the longest image with bidirectional attention and a token of every sequence."""
    return max(options.max_batch_tokens, options.whole_rows + options.num_slots if options.whole_rows else 0)


def _kv_format(options: LlamaOptions) -> str:
    attention, control = options.attention, options.control
    steering = "" if control is None else f", control vector {control.identity}"
    kinds = f"keys {attention.type_k}, values {attention.type_v}"
    return f"llama-cpp-python {version('llama-cpp-python')}, {kinds}{steering}"


def _context_size(info: ModelInfo, options: LlamaOptions) -> ContextSize:
    return ContextSize(
        num_slots=info.num_slots,
        kv_tokens=info.kv_tokens,
        max_batch_tokens=info.max_batch_tokens,
        max_ubatch_tokens=min(max(options.max_ubatch_tokens, options.whole_rows), info.max_batch_tokens),
        num_threads=num_threads(options),
        rotates_by_places=options.rotates_by_places,
    )
