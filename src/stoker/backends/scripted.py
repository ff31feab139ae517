"""A backend without a model, for tests, including those of users: deterministic, fast, as strict as a real one.

The logits of a position are a hash of the whole prefix that its slot *really* holds, so any mistake in the order of
operations, in positions or in sharing changes the output. The backend asserts that its traits allow each operation.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from math import ceil
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Embeddings, Logits
from stoker.backends.pooling import Pool
from stoker.core.batch import AdapterSet, Batch, CacheOp, Chunk, CopyPrefix, Entry
from stoker.core.embedding import EmbeddingInfo, Piece, Pooling
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.errors import BackendError

NUM_BYTES = 256
BOS, EOS, IM_START, IM_END = range(NUM_BYTES, NUM_BYTES + 4)
SPECIAL_TEXT = {BOS: "<s>", EOS: "</s>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
VOCAB_SIZE = NUM_BYTES + len(SPECIAL_TEXT)

FULL_TRAITS = CacheTraits(can_truncate=True, can_copy=True, shares_cells=True, can_export=True)


class Script(Protocol):
    """Scripted answers, which determine the most likely tokens in place of the hash, and how long a step takes."""

    def begin_step(self, num_prompt_tokens: int) -> None:
        """Called before a step, which computes so many tokens of prompts."""

    def end_step(self) -> None:
        """Called after the tokens of a step are known; returns when the step has taken its time."""

    def next_token(self, slot: int, entries: Sequence[Entry], *, is_decode: bool) -> int:
        """The token that follows all entries of a slot. `is_decode`: only one of the entries is new."""
        ...

    def forget(self, slot: int) -> None:
        """Ends the answer that is played in a slot, because the slot was truncated."""


NextToken: TypeAlias = Callable[[Sequence[Entry]], int]
"""Returns the token that is to be most likely next, given all entries of a slot."""


def scripted_info(
    *,
    context_size: int = 512,
    kv_tokens: int = 2048,
    num_slots: int = 16,
    max_batch_tokens: int = 256,
    traits: CacheTraits = FULL_TRAITS,
    mixes_adapters: bool = False,
    vocab_size: int = VOCAB_SIZE,
    is_batch_invariant: bool = True,
) -> ModelInfo:
    """The `ModelInfo` of a scripted model with the byte vocabulary of `ScriptedTokenizer`."""
    return ModelInfo(
        name="scripted",
        architecture="scripted",
        vocab_size=vocab_size,
        eog_token_ids=frozenset({EOS, IM_END}),
        trained_context=context_size,
        context_size=context_size,
        kv_tokens=kv_tokens,
        num_slots=num_slots,
        max_batch_tokens=max_batch_tokens,
        traits=traits,
        mixes_adapters=mixes_adapters,
        is_batch_invariant=is_batch_invariant,
        kv_format="scripted 1",
    )


class _Cell:
    """One position of KV: its entry and the hash of everything up to it."""

    __slots__ = ("entry", "state")

    def __init__(self, entry: Entry, state: int) -> None:
        self.entry = entry
        self.state = state


class ScriptedBackend:
    """A backend that computes hashes instead of a model. Adapters and their scales are a part of every hash.

    Args:
        info: the sizes and traits that the backend claims.
        next_token: returns the token that is by far the most likely; None = the hash determines it.
        script: determines the next token by the position in a scripted answer.
        before_forward: called first in every `forward`; may block, raise `BackendError`, or inspect the batch.
    """

    def __init__(
        self,
        info: ModelInfo | None = None,
        *,
        next_token: NextToken | None = None,
        script: Script | None = None,
        before_forward: Callable[[Batch], None] | None = None,
    ) -> None:
        self.info = info or scripted_info()
        self._most_cells = max(self.info.kv_tokens, self.info.most_kv_tokens)
        self._next_token = next_token
        self._script = script
        self._before_forward = before_forward
        self._slots: list[list[_Cell]] = [[] for _ in range(self.info.num_slots)]
        self._token_mix = np.arange(1, self.info.vocab_size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        self._drafted_from: dict[int, int] = {}
        """For each slot the start of its last chunk, if that was a draft."""
        self._without_state: set[int] = set()
        """Slots into which blocks were imported, but not yet the state that the model continues from."""
        self.num_computed = 0
        """Entries computed since the start; shows how many a prefix cache hit really saved."""
        self.adapters: set[str] = set()
        """Keys of the loaded adapters."""
        self.row_width = 1
        """See `RowsPort`."""
        self.rows: dict[bytes, tuple[int, ...]] = {}
        """For the key of each span the numbers that represent its rows."""
        self.is_closed = False

    @property
    def num_cells(self) -> int:
        """Number of cells in use; shared cells count once if the traits say `shares_cells`."""
        if self.info.traits.shares_cells:
            return len({id(cell) for slot in self._slots for cell in slot})
        return sum(len(slot) for slot in self._slots)

    def _fits(self) -> bool:
        """Whether the cells fit. Shared cells are only counted if needed: the time grows with the prompts' length."""
        return sum(map(len, self._slots)) <= self._most_cells or self.num_cells <= self._most_cells

    def forward(self, batch: Batch) -> Logits:
        """See `Backend.forward`."""
        assert not self.is_closed, "forward after close"
        if self._before_forward is not None:
            self._before_forward(batch)
        for op in batch.ops:
            self._apply(op)
        assert batch.chunks or batch.imports or batch.ops, "a batch without anything to do"
        assert batch.num_tokens <= self.info.max_batch_tokens, f"{batch.num_tokens} entries in a batch"
        computed, filled = {c.slot for c in batch.chunks}, {t.slot for t in batch.imports}
        assert not computed & filled, "a slot is computed before it is filled"
        assert len({chunk.slot for chunk in batch.chunks}) == len(batch.chunks), "two chunks for one slot"
        sets = {chunk.adapters for chunk in batch.chunks}
        assert len(sets) <= 1 or self.info.mixes_adapters, "chunks of several sets of adapters in one step"
        assert {key for adapters in sets for key, _ in adapters} <= self.adapters, "an adapter that is not loaded"
        if self._script is not None:
            self._script.begin_step(batch.prompt_sizes()[1])
        rows = [row for chunk in batch.chunks for row in self._compute(chunk)]
        if self._script is not None:
            self._script.end_step()
        for chunk in batch.chunks:
            self._drafted_from.pop(chunk.slot, None)
            if batch.num_drafted:
                self._drafted_from[chunk.slot] = chunk.start
        assert self._fits(), "the pool overflows"
        return np.stack(rows) if rows else np.empty((0, self.info.vocab_size), dtype=np.float32)

    def export_kv(
        self, slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True
    ) -> KVBytes:
        """See `KVPort.export_kv`."""
        self._check_portable(start, has_state=has_state)
        cells = self._slots[slot]
        assert 0 <= start < end <= len(cells), "export beyond the end"
        assert not has_state or self._can_cut(slot, end), "this model knows only its present state"
        assert not has_state or slot not in self._without_state, "there is no state"
        before = cells[start - 1].state if start else 0
        content = repr((start, has_state, before, [(cell.entry, cell.state) for cell in cells[start:end]])).encode()
        state = take(len(content))
        state[:] = content
        return state.toreadonly()

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """See `KVPort.import_kv`."""
        self._check_portable(start, has_state=has_state)
        assert len(self._slots[slot]) == start, "a hole or an overlap"
        try:
            first, had_state, before, cells = literal_eval(bytes(state).decode())
        except (ValueError, SyntaxError) as error:
            raise BackendError(f"these bytes are not exported KV: {error}") from error
        if first != start or len(cells) != end - start or had_state != has_state:
            raise BackendError(f"exported KV of other positions: {first} … {first + len(cells) - 1}")
        assert before == (self._slots[slot][-1].state if start else 0), "exported KV of another text"
        self._slots[slot].extend(_Cell(*cell) for cell in cells)
        (self._without_state.discard if has_state else self._without_state.add)(slot)
        assert self._fits(), "the pool overflows"

    def expect_kv(self, num_bytes: int) -> None:
        """See `KVPort.expect_kv`. Does nothing, as there is no memory to prepare."""

    def hold_rows(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """See `RowsPort.hold_rows`."""
        assert rows.shape[1:] == (self.row_width,), "rows of another width"
        self.rows[key] = tuple(int(number) for number in rows[:, 0])

    def drop_rows(self, key: bytes) -> None:
        """See `RowsPort.drop_rows`."""
        self.rows.pop(key, None)

    def load_adapter(self, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        assert not self.is_closed, "used after close"
        assert key not in self.adapters, "loaded twice"
        self.adapters.add(key)

    def unload_adapter(self, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        self.adapters.remove(key)

    def close(self) -> None:
        """See `Backend.close`."""
        self.is_closed = True

    def _check_portable(self, start: int, *, has_state: bool) -> None:
        assert not self.is_closed, "used after close"
        traits = self.info.traits
        assert traits.can_export, "export denied by the traits"
        assert has_state or traits.exports_apart, "a state is not apart"
        assert traits.can_truncate or traits.exports_apart or start == 0, "a range of what cannot be cut"

    def _apply(self, op: CacheOp) -> None:
        traits = self.info.traits
        if isinstance(op, CopyPrefix):
            assert traits.can_copy, "copy denied by the traits"
            assert op.source != op.target
            assert not self._slots[op.target], "copy into a slot that is not empty"
            present = len(self._slots[op.source])
            assert op.source not in self._without_state, "there is no state to copy"
            assert 0 < op.length <= present, "copy beyond the end"
            assert op.length == present or not traits.copies_whole, "copy of a part denied by the traits"
            cells = self._slots[op.source][: op.length]
            self._slots[op.target] = cells if traits.shares_cells else [_Cell(c.entry, c.state) for c in cells]
        else:
            assert op.length <= len(self._slots[op.slot]), "truncate beyond the end"
            assert op.length == 0 or self._can_cut(op.slot, op.length), "truncate denied by the traits"
            self._slots[op.slot] = self._slots[op.slot][: op.length]
            if op.length == 0:
                self._without_state.discard(op.slot)
            if self._script is not None:
                self._script.forget(op.slot)

    def _can_cut(self, slot: int, length: int) -> bool:
        """Whether a slot may be cut to a length. Its present length is always allowed."""
        traits, present = self.info.traits, len(self._slots[slot])
        is_tail = self._drafted_from.get(slot, present) < length and present - length <= traits.truncatable_tail
        return length == present or traits.can_truncate or is_tail

    def _compute(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        cells = self._slots[chunk.slot]
        assert chunk.slot not in self._without_state, "there is no state to go on from"
        assert chunk.entries, "an empty chunk"
        assert chunk.num_logits <= len(chunk.entries)
        assert chunk.start == len(cells), f"a hole or an overlap: slot has {len(cells)}, chunk starts at {chunk.start}"
        assert chunk.end <= self.info.context_size, "beyond the context"
        first_row = len(chunk.entries) - chunk.num_logits
        rows: list[NDArray[np.float32]] = []
        inputs = self._inputs(chunk)
        for index, entry in enumerate(chunk.entries):
            before = cells[-1].state if cells else 0
            cells.append(_Cell(entry, _mix(before ^ (inputs.get(index, entry) + 1) ^ _adapter_mix(chunk.adapters))))
            if index >= first_row:
                rows.append(self._row(cells))
        if rows and self._script is not None:
            entries = [cell.entry for cell in cells]
            rows[-1][self._script.next_token(chunk.slot, entries, is_decode=len(chunk.entries) == 1)] = 100
        self.num_computed += len(chunk.entries)
        return rows

    def _inputs(self, chunk: Chunk) -> dict[int, int]:
        """A number for each row of an image, by its index in the chunk. With `is_whole` it depends on all rows."""
        found: dict[int, int] = {}
        for offset, first, count, span, _ in chunk.rows:
            assert span.key in self.rows, "these rows were not given"
            rows = self.rows[span.key]
            assert len(rows) == span.length, "rows of another span"
            assert first + count == span.length or not span.is_whole, "a chunk ends inside of what is seen whole"
            whole = hash(rows) if span.is_whole else 0
            found |= {offset + i: _mix((rows[first + i] ^ whole) & 0xFFFFFFFFFFFFFFFF) for i in range(count)}
        assert all((entry < 0) == (index in found) for index, entry in enumerate(chunk.entries)), "rows without numbers"
        return found

    def _row(self, cells: list[_Cell]) -> NDArray[np.float32]:
        mixed = self._token_mix ^ np.uint64(cells[-1].state)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        row = ((mixed >> np.uint64(40)).astype(np.float32) / np.float32(2**20)) - np.float32(8)
        if self._next_token is not None:
            row[self._next_token([cell.entry for cell in cells])] = 100
        return row


class ScriptedEmbedder:
    """An embedder whose hidden states are hashes of all entries up to a token. Satisfies `Embedder`.

    Args:
        info: the sizes and pooling that it claims. With `Pooling.RANK` the score is the number of different entries.
        before_embed: called first in every `embed`; may block, raise `BackendError`, or inspect the pieces.
    """

    def __init__(
        self, info: EmbeddingInfo | None = None, *, before_embed: Callable[[Sequence[Piece]], None] | None = None
    ) -> None:
        self.embedding = info or scripted_embedding_info()
        self._before_embed = before_embed
        self._held: list[_Cell] = []
        """The cells of slot 0, whose sequence may come in several pieces."""
        is_rank = self.embedding.pooling is Pooling.RANK
        self._pool = None if is_rank else Pool(self.embedding.pooling, self.embedding.size)

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """See `Embedder.embed`."""
        info = self.embedding
        if self._before_embed is not None:
            self._before_embed(pieces)
        assert sum(len(piece.entries) for piece in pieces) <= info.max_batch_tokens, "too much for one pass"
        assert len({piece.slot for piece in pieces}) == len(pieces), "two pieces for one slot"
        cells = [self._cells(piece) for piece in pieces]
        if self._pool is None:
            scores = [
                len({cell.entry for cell in known}) for piece, known in zip(pieces, cells, strict=True) if piece.is_last
            ]
            return np.array(scores, dtype=np.float32).reshape(len(scores), 1)
        new = (cell for piece, known in zip(pieces, cells, strict=True) for cell in known[piece.start :])
        return self._pool.push(pieces, np.stack([_hidden(cell.state, info.size) for cell in new]))

    def _cells(self, piece: Piece) -> list[_Cell]:
        """All cells of the piece's slot, including those of the piece."""
        info = self.embedding
        assert piece.entries, "an empty piece"
        assert piece.slot < info.num_slots, "no such slot"
        assert piece.end <= info.max_tokens, "too long"
        assert piece.slot == 0 or (piece.start == 0 and piece.is_last), "a part of a sequence outside of slot 0"
        assert info.can_split or (piece.start == 0 and piece.is_last), "this model needs whole sequences"
        assert piece.start in (0, len(self._held)), "a hole or an overlap"
        cells = self._held if piece.start else []
        for entry in piece.entries:
            cells.append(_Cell(entry, _mix((cells[-1].state if cells else 0) ^ (entry + 1))))
        if piece.slot == 0:
            self._held = cells
        return cells


def scripted_embedding_info(
    *, pooling: Pooling = Pooling.MEAN, max_tokens: int = 512, max_batch_tokens: int = 256, can_split: bool = True
) -> EmbeddingInfo:
    """The `EmbeddingInfo` of a scripted model."""
    return EmbeddingInfo(
        pooling=pooling,
        size=1 if pooling is Pooling.RANK else 8,
        max_tokens=max_tokens,
        max_batch_tokens=max_batch_tokens if can_split else max(max_batch_tokens, max_tokens),
        num_slots=16,
        can_split=can_split,
        suffix=(EOS,),
        separator=(EOS, BOS),
    )


def _hidden(state: int, size: int) -> NDArray[np.float32]:
    return np.array([_mix(state ^ index) / 2**63 - 1 for index in range(size)], dtype=np.float32)


@cache
def _adapter_mix(adapters: AdapterSet) -> int:
    """The part of the hash that represents a set of adapters; 0 without adapters."""
    digest = blake2b(repr(adapters).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") if adapters else 0


def _mix(state: int) -> int:
    """One step of the hash function splitmix64."""
    state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return state ^ (state >> 31)


class ScriptedTokenizer:
    """The tokenizer of a scripted model: bytes are tokens 0 … 255; four special tokens follow, then those of `special`.

    Args:
        special: texts of additional special tokens.
    """

    vocab_size = VOCAB_SIZE
    bos_token_id: int | None = BOS
    eos_token_id: int | None = EOS
    adds_bos = True
    _special = SPECIAL_TEXT

    def __init__(self, special: Sequence[str] = ()) -> None:
        further = (text for text in dict.fromkeys(special) if text not in SPECIAL_TEXT.values())
        self._special = {**SPECIAL_TEXT, **dict(enumerate(further, VOCAB_SIZE))}
        self.vocab_size = NUM_BYTES + len(self._special)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """See `Tokenizer.encode`."""
        if not parse_special:
            return list(text.encode())
        token_ids: list[int] = []
        while text:
            found = [(text.find(s), -len(s), t) for t, s in self._special.items() if s in text]
            at, _, special = min(found, default=(len(text), 0, None))
            token_ids.extend(text[:at].encode())
            if special is None:
                break
            token_ids.append(special)
            text = text[at + len(self._special[special]) :]
        return token_ids

    def fewest_tokens(self, text: str) -> int:
        """See `Tokenizer.fewest_tokens`."""
        return ceil(len(text) / max(map(len, self._special.values())))

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """See `Tokenizer.token_bytes`."""
        if token_id < NUM_BYTES:
            return bytes([token_id])
        return self._special[token_id].encode() if render_special else b""


def reply_with(text: str) -> NextToken:
    """Returns a `next_token` that answers every prompt with `text` and then ends.

    It continues after the longest prefix of `text` that the entries end with, so no prompt should end with one.
    """
    wanted = [*ScriptedTokenizer().encode(text), EOS]

    def next_token(entries: Sequence[Entry]) -> int:
        for length in range(min(len(wanted) - 1, len(entries)), 0, -1):
            if list(entries[-length:]) == wanted[:length]:
                return wanted[length]
        return wanted[0]

    return next_token
