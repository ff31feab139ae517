"""The ONNX backend: it runs language models as ONNX graphs on ONNX Runtime. It schedules nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Logits
from stoker.backends.onnx.batches import split_by_padding, split_by_rows, split_by_tokens
from stoker.backends.onnx.entry_rows import EntryRows
from stoker.backends.onnx.file import GraphFile
from stoker.backends.onnx.growing import GrowingKV
from stoker.backends.onnx.in_place import InPlaceKV
from stoker.backends.onnx.kv import GraphKV
from stoker.backends.onnx.memory import KVMemory
from stoker.backends.onnx.recomputed import RecomputedKV
from stoker.backends.onnx.runtime import (
    CPU,
    ON_DEVICES,
    Session,
    SessionOptions,
    is_host_memory,
    load_errors,
    open_session,
)
from stoker.backends.onnx.signature import Signature
from stoker.backends.sizes import check_sizes, num_threads
from stoker.core.batch import Batch, CacheOp, Chunk, CopyPrefix
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.stages import Mark, no_mark
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.errors import BackendError, ModelNotLoaded, StokerError

logger = getLogger(__name__)

_KV_VERSION = 1
_MAX_LOGITS_BYTES = 256 << 20
_MIN_BATCH_TOKENS = 16
_BATCH_TOKENS = 512
_USUAL_CONTEXT = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """The options with which one model is loaded. Immutable.

    Raises:
        ConfigError: a number is out of its range.
    """

    context_size: int
    """Length of the longest single sequence, in tokens."""
    kv_tokens: int
    """Size of the KV pool that all sequences share, in tokens."""
    num_slots: int = 64
    """Most sequences that hold KV at the same time, running and retained."""
    max_batch_tokens: int = _BATCH_TOKENS
    """Most entries of one forward pass. Graphs that return logits for every entry get fewer."""
    max_paddings: int | None = None
    """Most positions of padding in one run of a graph that needs padding; None = any number."""
    threads: int | None = None
    """CPU threads, 1 … 512. None = one per core that this process may use."""
    provider: str = "auto"
    """Execution provider of ONNX Runtime: `auto`, `cpu`, `cuda` …"""
    device_id: int = 0
    """Which device of the provider computes."""
    spins: bool = False
    """Whether threads spin for a moment before they sleep. For a model that does not share its cores."""
    packed_directory: Path | None = None
    """Directory of packed weights that several processes (replicas) map. None = each packs weights in memory."""
    operators: Path | None = None
    """Library with Stoker's own operators, for graphs that can use them. None = only ONNX Runtime's operators."""
    name: str = ""
    architecture: str = "onnx"
    trained_context: int = 0
    """Context length that the model was trained with, in tokens; 0 = `context_size`."""

    def __post_init__(self) -> None:
        check_sizes(self)


class OnnxBackend:
    """A loaded language model as an ONNX graph, with one pool of KV. Satisfies `Backend`, `KVPort` and `RowsPort`.

    If every attention of the graph is a `GroupQueryAttention` and tensors are in host memory, KV is updated in place
    (`InPlaceKV`). Otherwise runs return KV as new, longer tensors (`GrowingKV`). A graph without a KV cache recomputes
    each sequence (`RecomputedKV`). One run decodes sequences of any lengths, as far as the graph can pad. Each chunk of
    a prompt gets a run of its own, because `GroupQueryAttention` takes several tokens with a past only for a single
    sequence.

    Logits of a sequence hardly depend on the rest of the batch and on how its prompt was cut into chunks, but they are
    not the same to the bit: ONNX Runtime chooses other kernels for other shapes.

    Args:
        graph: the file.
        signature: the roles of the graph's inputs and outputs.
        options: sizes, threads and provider.
        table: the graph that computes embeddings of token ids (`embed_tokens`), if `graph` takes embeddings.
        eog_token_ids: end-of-generation tokens, as the tokenizer states them.
        mark: called when the inputs of a run are bound, and when the run has been computed.

    Raises:
        ModelUnsupported: ONNX Runtime is not installed, or cannot run this graph.
        ModelFileInvalid: the file is damaged.
        ResourceExhausted: there is no memory for the weights or for the KV.
        ConfigError: there is no such provider.
    """

    def __init__(
        self,
        graph: GraphFile,
        signature: Signature,
        options: OnnxOptions,
        *,
        table: GraphFile | None = None,
        eog_token_ids: frozenset[int] = frozenset(),
        mark: Mark = no_mark,
    ) -> None:
        assert (table is not None) == bool(signature.row_width), "rows of tokens for who takes rows"
        self._signature = signature
        self._options = _session_options(options)
        self._session: Session | None = open_session(graph, self._options)
        # A graph may contain all weights, so it is kept only if another provider may have to load it later.
        self._graph = None if self._session.provider == CPU else graph
        self.info = _model_info(graph.path, signature, options, eog_token_ids)
        memory = KVMemory(
            signature.kv,
            signature.kv_type,
            num_rows=options.num_slots,
            max_tokens=self.info.max_sequence_tokens,
            kv_tokens=options.kv_tokens,
        )
        self._memory = memory
        self._logits: Logits = np.empty((0, signature.vocab_size), dtype=np.float32)
        self.row_width = signature.row_width
        """Numbers of a row, see `RowsPort`; 0 = the graph takes token ids instead of rows."""
        self._entries = None if table is None else EntryRows(table, signature.row_width, self._options)
        self._kv = self._graph_kv(self._session, memory, options, mark)
        self._max_paddings = options.max_paddings if signature.can_pad else 0
        if signature.can_pad and self.is_in_place:
            self._max_paddings = None  # rows of different lengths need no padding there

    @property
    def provider(self) -> str:
        """The execution provider that computes: `cpu`, `cuda` …"""
        return self._open_session().provider

    @property
    def is_in_place(self) -> bool:
        """Whether the graph updates KV in place instead of returning it as new tensors."""
        return isinstance(self._kv, InPlaceKV)

    def forward(self, batch: Batch) -> Logits:
        """See `Backend.forward`. After a `BackendError` every slot has the length that the batch's operations gave it.

        If a device fails, the next provider recomputes the batch, and computes all later batches.

        Raises:
            ModelNotLoaded: the backend was closed.
        """
        self._open_session()
        assert batch.num_tokens <= self.info.max_batch_tokens, f"{batch.num_tokens} entries in a batch"
        for op in batch.ops:
            self._apply(op)
        logits = self._logits_of(batch.num_rows)
        while (error := self._failure(batch.chunks, logits)) is not None:
            reason = " ".join(str(error).split())
            if not self._go_on_elsewhere(reason):
                raise BackendError(f"the forward pass failed: {reason}") from error
        self._kv.finish()
        return logits

    def _failure(self, chunks: Sequence[Chunk], logits: Logits) -> Exception | None:
        """Computes the chunks; returns the error if that fails, else None. After a failure the slots are unchanged."""
        try:
            self._compute(chunks, logits)
        except load_errors() as error:
            with suppress(*load_errors()):  # the memory of a failed device cannot be read
                for chunk in chunks:
                    if self._kv.length(chunk.slot) > chunk.start:
                        self._kv.truncate(chunk.slot, chunk.start)
            return error
        return None

    def _go_on_elsewhere(self, reason: str) -> bool:
        """Switches to another provider; returns whether there is one. Each is tried once, the CPU last."""
        failed = self._open_session().provider
        if self._graph is None:
            return False
        unfit = ON_DEVICES if self.is_in_place else ()  # in-place KV is in host memory
        options = replace(self._options, failed=(*self._options.failed, failed, *unfit))
        try:
            session = open_session(self._graph, options)
            self._kv.use(session)
        except (StokerError, *load_errors()) as error:
            logger.error("the provider %s failed, and no other one can go on: %s", failed, error)
            return False
        logger.warning("the provider %s failed, %s computes from now on: %s", failed, session.provider, reason)
        self._session, self._options = session, options
        if session.provider == CPU:
            self._graph = None
        return True

    def export_kv(
        self, slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True
    ) -> KVBytes:
        """See `KVPort.export_kv`."""
        self._open_session()
        assert 0 <= start < end <= self._kv.length(slot), "export beyond the end"
        return self._kv.export(slot, start, end)

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """See `KVPort.import_kv`."""
        self._open_session()
        assert self._kv.length(slot) == start, "a hole or an overlap"
        view = memoryview(state).cast("B")
        if not self._kv.restore(slot, start, end, view):
            raise BackendError(f"{len(view)} bytes are not the KV of the positions {start} … {end - 1}")

    def expect_kv(self, num_bytes: int) -> None:
        """See `KVPort.expect_kv`. Does nothing, because the rows that an import will write to are not known yet."""

    def hold_rows(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """See `RowsPort.hold_rows`."""
        assert self._entries is not None, "a graph that takes rows"
        self._entries.rows.hold(key, rows)

    def drop_rows(self, key: bytes) -> None:
        """See `RowsPort.drop_rows`."""
        if self._entries is not None:
            self._entries.rows.drop(key)

    def close(self) -> None:
        """Frees the KV. Weights are freed with their last user. Calling it twice is allowed."""
        if self._session is None:
            return
        self._session = None
        self._entries = None
        del self._kv, self._memory

    def __enter__(self) -> OnnxBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _graph_kv(self, session: Session, memory: KVMemory, options: OnnxOptions, mark: Mark) -> GraphKV:
        if not self._signature.kv:
            return RecomputedKV(session, self._signature, memory.capacity, options.num_slots, mark)
        if self._signature.is_in_place and is_host_memory(session):
            return InPlaceKV(session, self._signature, memory, options.num_slots, mark, self._entries)
        return GrowingKV(session, self._signature, memory, mark, self._entries)

    def _open_session(self) -> Session:
        if self._session is None:
            raise ModelNotLoaded("The model was closed.")
        return self._session

    def _apply(self, op: CacheOp) -> None:
        if isinstance(op, CopyPrefix):
            assert self._kv.length(op.target) == 0, f"slot {op.target} is not empty"
            assert op.length <= self._kv.length(op.source), f"slot {op.source} has no {op.length} positions"
            self._kv.copy_prefix(op.source, op.target, op.length)
        elif op.length < self._kv.length(op.slot):
            self._kv.truncate(op.slot, op.length)

    def _logits_of(self, num_rows: int) -> Logits:
        """Always a part of the same array: to touch new pages would cost as much as the copy."""
        if num_rows > len(self._logits):
            self._logits = np.empty((num_rows, self.info.vocab_size), dtype=np.float32)
        return self._logits[:num_rows]

    def _compute(self, chunks: Sequence[Chunk], logits: Logits) -> None:
        begins = dict(zip((chunk.slot for chunk in chunks), _row_begins(chunks), strict=True))
        for group in self._groups(chunks):
            num_rows = max(chunk.num_logits for chunk in group)
            rows = self._kv.compute(group, num_rows)
            for chunk, found in zip(group, rows, strict=True):
                last = begins[chunk.slot] + chunk.num_logits
                logits[begins[chunk.slot] : last] = found[num_rows - chunk.num_logits :]
                begins[chunk.slot] = last
                self._kv.commit(chunk.slot, chunk.end)

    def _groups(self, chunks: Sequence[Chunk]) -> Iterator[Sequence[Chunk]]:
        """Groups of chunks, one for each run: a prompt's chunk alone, chunks of one token together."""
        for chunk in chunks:
            assert chunk.start == self._kv.length(chunk.slot), f"a hole or an overlap in slot {chunk.slot}"
        singles = [chunk for chunk in chunks if len(chunk.entries) == 1]
        for chunk in chunks:
            if len(chunk.entries) > 1:
                yield from ([part] for part in self._parts(chunk))
        if self._signature.one_sequence:
            yield from ([chunk] for chunk in singles)
        else:
            yield from split_by_padding(singles, self._max_paddings)

    def _parts(self, chunk: Chunk) -> Sequence[Chunk]:
        """The parts of a prompt's chunk that need separate runs."""
        chunks = self._signature.chunks
        if chunks == "never" or (chunks == "first" and chunk.start > 0):
            return split_by_tokens(chunk)
        return split_by_rows(chunk, gives_all_rows=self._signature.can_give_all_rows)


def _row_begins(chunks: Sequence[Chunk]) -> Iterator[int]:
    at = 0
    for chunk in chunks:
        yield at
        at += chunk.num_logits


def _session_options(options: OnnxOptions) -> SessionOptions:
    return SessionOptions(
        threads=num_threads(options),
        provider=options.provider,
        device_id=options.device_id,
        spins=options.spins,
        packed_directory=options.packed_directory,
        operators=options.operators,
    )


def _model_info(path: Path, signature: Signature, options: OnnxOptions, eog_token_ids: frozenset[int]) -> ModelInfo:
    return ModelInfo(
        name=options.name or path.stem,
        architecture=options.architecture,
        vocab_size=signature.vocab_size,
        eog_token_ids=eog_token_ids,
        trained_context=options.trained_context or options.context_size,
        context_size=options.context_size,
        kv_tokens=options.kv_tokens,
        num_slots=options.num_slots,
        max_batch_tokens=min(_batch_tokens(signature, options.max_batch_tokens), options.kv_tokens),
        traits=CacheTraits(can_truncate=True, can_copy=True, shares_cells=False, can_export=bool(signature.kv)),
        pass_per_prompt=True,
        kv_format=_kv_format(signature),
        kv_bytes_per_token=signature.kv_bytes_per_token,
    )


def max_logits_bytes(signature: Signature, longest: int | None = None) -> int:
    """Maximum number of bytes of the logits that the graph returns from one run.

    Args:
        signature: the signature of the graph.
        longest: length in tokens of the longest sequence, which a graph without a KV cache computes in one run; None =
            `_USUAL_CONTEXT`.
    """
    num_rows = _batch_tokens(signature, _BATCH_TOKENS) if signature.kv else longest or _USUAL_CONTEXT
    num_rows = num_rows if _gives_unwanted(signature) else 1
    return num_rows * signature.vocab_size * signature.logits.type.itemsize


def _gives_unwanted(signature: Signature) -> bool:
    """Whether the graph returns logits for every entry, wanted or not."""
    return signature.gives_all_rows and not signature.can_choose_rows


def _batch_tokens(signature: Signature, wanted: int) -> int:
    if not _gives_unwanted(signature):
        return wanted
    fitting = _MAX_LOGITS_BYTES // (signature.vocab_size * signature.logits.type.itemsize)
    return min(wanted, max(fitting, _MIN_BATCH_TOKENS))


def _kv_format(signature: Signature) -> str:
    shapes = [(tensor.num_heads, tensor.head_size) for tensor in signature.kv]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]
    return f"onnx {_KV_VERSION} {signature.kv_type.name} {digest}"
