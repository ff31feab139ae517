"""A draft head at work: what it has seen of each slot, and guesses from the hidden states of the layers before it.

```
positions       … | 40 | 41 | 42 | 43 | 44 | 45        45: the entry that the model computes next
seen by it      … | 40 |
to be seen             | 41 | 42 | 43 | 44 |           each with the hidden state of the position before it
hidden states     | 40 | 41 | 42 | 43 | 44 |
1st pass               | 41 | 42 | 43 | 44 | 45  -> a  and a hidden state of its own
2nd pass                                         a  -> b
```

Keys and values of the head lie in memory of its own, in pages with the numbers of the model's pages. So slots that
share a prefix share it here, too. Guesses beyond the end of a slot are forgotten.

A head that is not asked rests (`HeadRest`): what the model computes meanwhile is a gap in its slots, and nothing is
guessed after a gap. This module decides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.base import Guess
from stoker.backends.native.batch_arrays import BatchArrays
from stoker.backends.native.head_rest import HeadRest
from stoker.backends.native.pages import PageLedger, pages_for
from stoker.backends.native.spec import DecoderSpec
from stoker.core.batch import Chunk, Entry
from stoker.core.model_info import ModelInfo

_MOST = 64
"""Entries of a slot that wait to be seen, and of a draft: a chunk of more is no draft, so nothing of it is cut off."""

_Rows = NDArray[np.float32]
_Part = tuple[Chunk, list[_Rows]]


class HeadInput(TypedDict, total=False):
    """Arguments of `Decoder.forward` of the model: where it writes what a head reads."""

    hidden: _Rows
    extracted: _Rows
    logit_hidden: _Rows


@dataclass(slots=True)
class _Tail:
    first: int = 0
    """Position of the first entry that is to be seen."""
    entries: list[Entry] = field(default_factory=list[Entry])
    states: list[_Rows] = field(default_factory=list[_Rows])
    """Hidden states of the positions before each of them, and of the last."""
    shift: int = 0
    """Of rotary positions."""
    gap: int | None = None
    """First position that the head will never see; None = it sees all."""


class DraftHead:
    """The head of one model, beside its decoder. One thread uses both.

    Args:
        decoder: of the head. `close` closes it.
        spec: of the head.
        token_ids: for each row of its logits the token of the model; None = they are the same.
        info: of the model.
        arrays: that batches are written to.
        ledger: of the model.
        copy_page: copies a page to another one, in the memory of both.
    """

    def __init__(
        self,
        decoder: _native.Decoder,
        spec: DecoderSpec,
        token_ids: NDArray[np.int64] | None,
        info: ModelInfo,
        arrays: BatchArrays,
        ledger: PageLedger,
        copy_page: Callable[[int, int], None],
    ) -> None:
        self._decoder = decoder
        self._copy_page = copy_page
        self._most_rows = info.max_batch_tokens
        self._max_tokens = info.max_sequence_tokens
        self._arrays, self._ledger = arrays, ledger
        assert spec.join is not None, "it is no draft head"
        self._is_fused = spec.join.fuse is not None
        self._token_ids = token_ids
        self._logits: _Rows = np.empty((info.num_slots, spec.head.num_rows), dtype=np.float32)
        shape = (0 if token_ids is None else info.num_slots, info.vocab_size)
        self._spread: _Rows = np.full(shape, -np.inf, dtype=np.float32)
        """Logits of all tokens of the model, where the head has others."""
        self._states: _Rows = np.empty((info.max_batch_tokens, spec.join.hidden_size), dtype=np.float32)
        """What the head gives."""
        self._given: _Rows = np.empty((info.max_batch_tokens, spec.join.state_size), dtype=np.float32)
        """What the model gives."""
        self._embedding_size = spec.embedding.num_columns
        self._unknown: _Rows = np.zeros(spec.join.state_size, dtype=np.float32)
        self._tails = [_Tail(states=[self._unknown]) for _ in range(info.num_slots)]
        self._rest = HeadRest()

    def wanted_states(self, chunks: Sequence[Chunk], num_entries: int) -> HeadInput:
        """Where the model is to write what the head reads when it computes these; nothing: they are a gap."""
        decodes = [len(chunk.entries) for chunk in chunks if len(chunk.entries) <= _MOST]
        if self._rest.sees(num_entries - sum(decodes), sum(decodes), len(decodes)):
            given = self._given[:num_entries]
            return HeadInput(extracted=given) if self._is_fused else HeadInput(hidden=given)
        for chunk in chunks:
            tail = self._tails[chunk.slot]
            if tail.gap is None:
                tail.gap = tail.first + len(tail.entries)
        return HeadInput()

    def can_draft(self, slot: int) -> bool:
        """Whether the head has seen all of a slot, or will when it drafts."""
        return self._tails[slot].gap is None

    def num_waiting(self, slot: int) -> int:
        """Entries that are seen with the next guess."""
        return len(self._tails[slot].entries)

    def follow(self, chunks: Iterable[Chunk]) -> None:
        """The model has computed these, and has written what was wanted."""
        row, full = 0, list[int]()
        for chunk in chunks:
            behind = row + len(chunk.entries)
            if self._note(chunk, self._given[row:behind].copy()):
                full.append(chunk.slot)
            row = behind
        self._see({slot: len(self._tails[slot].entries) for slot in full})

    def settle(self, slot: int, end: int) -> None:
        """Positions before `end` are to be copied: what of them waits is seen now."""
        tail = self._tails[slot]
        if tail.entries and end > tail.first:
            self._see({slot: min(end - tail.first, len(tail.entries))})

    def copy(self, source: int, target: int, length: int) -> None:
        """A prefix of one slot has appeared in another one."""
        self.settle(source, length)
        self.cut(target, length)
        gap = self._tails[source].gap
        self._tails[target].gap = gap if gap is not None and gap < length else None

    def cut(self, slot: int, length: int) -> None:
        """The slot has become shorter, or a prefix of so many positions has appeared in it."""
        tail = self._tails[slot]
        if tail.gap is not None and tail.gap < length:
            return
        tail.gap, left = None, length - tail.first
        if 0 <= left <= len(tail.entries):
            del tail.entries[left:], tail.states[left + 1 :]
        else:
            self._tails[slot] = _Tail(length, states=[self._unknown])

    def draft(self, wanted: Sequence[tuple[int, Entry, int]], guess: Guess) -> list[list[Entry]]:
        """Guesses how slots go on.

        Args:
            wanted: slot, the entry at its end, which the model has not computed, and how many entries more.
            guess: chooses from logits.

        Returns:
            As many for each, or none where no page is free, and where there is a gap.
        """
        self._rest.note_drafts(len(wanted))
        slots = [slot for slot, _, count in wanted if self.can_draft(slot) and self._prepare(slot, count)]
        drafts: dict[int, list[Entry]] = {slot: [] for slot, _, _ in wanted}
        most = {slot: count for slot, _, count in wanted if slot in slots}
        try:
            parts = self._first_parts([(slot, entry) for slot, entry, _ in wanted if slot in most])
            while parts:
                places = [(chunk.slot, len(drafts[chunk.slot])) for chunk, _ in parts]
                found = self._guess(parts, places, guess, is_first=not places[0][1])
                for (chunk, _), (entry, _) in zip(parts, found, strict=True):
                    drafts[chunk.slot].append(entry)
                parts = [
                    (chunk._replace(start=chunk.start + len(chunk.entries), entries=(entry,)), [state])
                    for (chunk, _), (entry, state) in zip(parts, found, strict=True)
                    if len(drafts[chunk.slot]) < most[chunk.slot]
                ]
        finally:
            for slot in most:
                self._ledger.abandon(slot)
        return [drafts[slot] for slot, _, _ in wanted]

    def close(self) -> None:
        """Joins its threads and frees its keys and values."""
        self._decoder.close()

    def _note(self, chunk: Chunk, states: _Rows) -> bool:
        """Entries of a slot wait, from the first on that has not been seen. Returns whether they are too many."""
        tail = self._tails[chunk.slot]
        if tail.gap is not None:
            return False
        is_draft = len(chunk.entries) <= _MOST
        if chunk.rows or chunk.shift != tail.shift or (is_draft and len(tail.entries) + len(chunk.entries) > _MOST):
            self.settle(chunk.slot, chunk.start)
        tail.shift = chunk.shift
        skipped = max(0, tail.first - chunk.start)  # of a recurrent layer's state, computed once more
        kept = max(0, chunk.start - tail.first)
        if chunk.rows:
            self._see_rows(tail, chunk, states)
            return False
        tail.entries[kept:] = chunk.entries[skipped:]
        tail.states[kept + 1 :] = list(states[skipped:])
        return not is_draft

    def _see_rows(self, tail: _Tail, chunk: Chunk, states: _Rows) -> None:
        """Entries that are rows of images are seen in one piece."""
        before = [tail.states[0] if tail.first == chunk.start else self._unknown, *states[:-1]]
        self._pass([(chunk._replace(num_logits=0, adapters=()), before)])
        tail.first, tail.entries, tail.states = chunk.start + len(chunk.entries), [], [states[-1]]

    def _prepare(self, slot: int, count: int) -> bool:
        length = self._ledger.length(slot)
        end = length + count
        if not 0 < count <= self._max_tokens - length:
            return False
        if pages_for(end) - pages_for(length) + 1 > self._ledger.num_free:
            return False
        if (copied := self._ledger.prepare(slot, end)) is not None:
            self._copy_page(*copied)
        return True

    def _first_parts(self, ends: list[tuple[int, Entry]]) -> list[_Part]:
        """All that waits of these slots, and the entry at the end of each."""
        if len(ends) + sum(len(self._tails[slot].entries) for slot, _ in ends) > self._most_rows:
            self._see({slot: len(self._tails[slot].entries) for slot, _ in ends})
        parts = list[_Part]()
        for slot, entry in ends:
            tail = self._tails[slot]
            parts.append((Chunk(slot, tail.first, (*tail.entries, entry), 1, (), (), tail.shift), list(tail.states)))
            tail.first += len(tail.entries)
            tail.entries, tail.states = [], tail.states[-1:]
        return parts

    def _see(self, counts: dict[int, int]) -> None:
        """The head sees the first entries that wait of these slots, in as many passes as they need."""
        parts, room = list[_Part](), self._most_rows
        for slot, count in counts.items():
            tail, done = self._tails[slot], 0
            while done < count:
                size = min(count - done, room)
                entries = tuple(tail.entries[done : done + size])
                parts.append(
                    (Chunk(slot, tail.first + done, entries, 0, (), (), tail.shift), tail.states[done : done + size])
                )
                done, room = done + size, room - size
                if room == 0:
                    self._pass(parts)
                    parts, room = [], self._most_rows
            tail.first += count
            del tail.entries[:count], tail.states[:count]
        if parts:
            self._pass(parts)

    def _guess(
        self, parts: list[_Part], places: list[tuple[int, int]], guess: Guess, *, is_first: bool
    ) -> list[tuple[Entry, _Rows]]:
        """What is likely to follow each part, and the hidden state that this is guessed from."""
        self._pass(parts, are_own=not is_first)
        token_ids = guess(self._logits_of_tokens(len(parts)), places)
        ends = np.cumsum([len(chunk.entries) for chunk, _ in parts]) - 1
        return list(zip(token_ids, self._states[ends].copy(), strict=True))

    def _logits_of_tokens(self, num_rows: int) -> _Rows:
        """The logits of the last pass, with a column for each token of the model."""
        if self._token_ids is None:
            return self._logits[:num_rows]
        self._spread[:num_rows, self._token_ids] = self._logits[:num_rows, : len(self._token_ids)]
        return self._spread[:num_rows]

    def _pass(self, parts: list[_Part], *, are_own: bool = False) -> None:
        """Computes parts with states that the model has given, or with those of the head."""
        tokens, rows, num_rows, _, more = self._arrays.fill(tuple(chunk for chunk, _ in parts))
        states = np.stack([state for _, given in parts for state in given])
        if "inputs" in more:  # further parts of a row are for layers of the model
            more["inputs"] = np.ascontiguousarray(more["inputs"][:, : self._embedding_size])
        self._decoder.forward(
            tokens,
            rows,
            self._ledger.tables,
            self._logits[:num_rows],
            hidden=self._states[: len(tokens)],
            joined=states if are_own or not self._is_fused else None,
            features=states if self._is_fused and not are_own else None,
            **more,
        )
