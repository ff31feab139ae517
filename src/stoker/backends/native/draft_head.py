"""Speculative decoding with a draft head that has keys and values of its own (MTP, EAGLE).

The head drafts from the hidden states of the target model. It must compute every entry of a slot before it drafts:

```
positions       … | 40 | 41 | 42 | 43 | 44 | 45        45: the entry that the model computes next
computed        … | 40 |
waiting                | 41 | 42 | 43 | 44 |           each with the hidden state of the position before it
hidden states     | 40 | 41 | 42 | 43 | 44 |
1st pass               | 41 | 42 | 43 | 44 | 45  -> a  and a hidden state of the head
2nd pass                                         a  -> b
```

Its keys and values are in separate memory, in pages with the numbers of the model's pages, so slots that share a prefix
share it here, too. KV of drafted entries is discarded. A head that seldom drafts rests (`HeadRest`): entries that the
model computes meanwhile are a gap in their slots; the head drafts nothing after a gap.
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
from stoker.backends.native.pages import PageLedger, pages_for
from stoker.backends.native.spec import DecoderSpec
from stoker.core.batch import Chunk, Entry
from stoker.core.model_info import ModelInfo

_MOST = 64
"""Maximum number of waiting entries of a slot, and of entries of a draft. A larger chunk is no draft and is not cut."""

_PATIENCE = 4096
"""Entries that a head computes without being asked for a draft before it rests."""
_WORTH = 128
"""Entries whose computation by the head costs about as much time as one draft saves."""
_REST = 16 * _PATIENCE
"""Entries for which the head rests. A head that is never asked computes one entry in 17."""

_Rows = NDArray[np.float32]
_Part = tuple[Chunk, list[_Rows]]


class HeadInput(TypedDict, total=False):
    """Arguments of `Decoder.forward` of the target model: arrays to which it writes hidden states for the head."""

    hidden: _Rows
    extracted: _Rows
    logit_hidden: _Rows


@dataclass(slots=True)
class _Tail:
    first: int = 0
    """Position of the first waiting entry."""
    entries: list[Entry] = field(default_factory=list[Entry])
    states: list[_Rows] = field(default_factory=list[_Rows])
    """Hidden states of the position before each waiting entry, and of the last entry."""
    shift: int = 0
    """`Chunk.shift` of the waiting entries: rotary position less index."""
    gap: int | None = None
    """First position that the head will never compute; None = there is no gap."""


class HeadRest:
    """Decides when a draft head that is seldom asked for drafts stops computing the model's entries. It only counts.

    ```
    awake      patience - 1 for each computed entry, + _WORTH for each draft, at most _PATIENCE; below 0 the head rests
    resting    until _REST entries have passed
    ```

    An entry of one of n decodes in a step counts as n entries, because drafts pay only with few sequences at a time.
    """

    def __init__(self) -> None:
        self._patience = _PATIENCE
        self._left = 0

    def sees(self, num_prompt: int, num_decode: int, num_decodes: int) -> bool:
        """Whether the head computes a step, given its entries of prompts and of decodes, and the number of decodes."""
        num_entries = num_prompt + num_decode * num_decodes
        if self._left > 0:
            self._left -= num_entries
            return False
        self._patience -= num_entries
        if self._patience >= 0:
            return True
        self._patience, self._left = _PATIENCE, _REST - num_entries
        return False

    def note_drafts(self, count: int) -> None:
        """Records that the head was asked for drafts of `count` sequences."""
        self._patience = min(_PATIENCE, self._patience + _WORTH * count)


class DraftHead:
    """The draft head of one model. The thread that runs the model's forward passes is the only one that uses it.

    Args:
        decoder: the decoder of the head. `close` closes it.
        spec: the description of the head.
        token_ids: the target model's token for each entry of the head's vocabulary; None = the vocabularies are equal.
        info: sizes of the target model.
        arrays: the arrays to which batches are written.
        ledger: page tables of the target model.
        copy_page: copies a page to another page, in the memory of the model and of the head.
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
        """Logits of all tokens of the target model, if the head's vocabulary differs from the model's."""
        self._states: _Rows = np.empty((info.max_batch_tokens, spec.join.hidden_size), dtype=np.float32)
        """Hidden states that the head returns."""
        self._given: _Rows = np.empty((info.max_batch_tokens, spec.join.state_size), dtype=np.float32)
        """Hidden states that the target model returns."""
        self._embedding_size = spec.embedding.num_columns
        self._unknown: _Rows = np.zeros(spec.join.state_size, dtype=np.float32)
        self._tails = [_Tail(states=[self._unknown]) for _ in range(info.num_slots)]
        self._rest = HeadRest()

    def wanted_states(self, chunks: Sequence[Chunk], num_entries: int) -> HeadInput:
        """Where the model must write hidden states when it computes these chunks; empty = the chunks become a gap."""
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
        """Whether the slot has no gap: the head has computed all of its entries, or will when it drafts."""
        return self._tails[slot].gap is None

    def num_waiting(self, slot: int) -> int:
        """Number of waiting entries of a slot, which the head computes with its next draft."""
        return len(self._tails[slot].entries)

    def follow(self, chunks: Iterable[Chunk]) -> None:
        """Takes the hidden states of these chunks, which the model wrote to the arrays of `wanted_states`."""
        row, full = 0, list[int]()
        for chunk in chunks:
            behind = row + len(chunk.entries)
            if self._note(chunk, self._given[row:behind].copy()):
                full.append(chunk.slot)
            row = behind
        self._see({slot: len(self._tails[slot].entries) for slot in full})

    def settle(self, slot: int, end: int) -> None:
        """Computes the waiting entries before position `end`, so that the KV of earlier positions can be copied."""
        tail = self._tails[slot]
        if tail.entries and end > tail.first:
            self._see({slot: min(end - tail.first, len(tail.entries))})

    def copy(self, source: int, target: int, length: int) -> None:
        """Follows the model's copy of a prefix of `length` positions from slot `source` to slot `target`."""
        self.settle(source, length)
        self.cut(target, length)
        gap = self._tails[source].gap
        self._tails[target].gap = gap if gap is not None and gap < length else None

    def cut(self, slot: int, length: int) -> None:
        """Follows the model when a slot is cut to `length` positions, or gets a prefix of that length."""
        tail = self._tails[slot]
        if tail.gap is not None and tail.gap < length:
            return
        tail.gap, left = None, length - tail.first
        if 0 <= left <= len(tail.entries):
            del tail.entries[left:], tail.states[left + 1 :]
        else:
            self._tails[slot] = _Tail(length, states=[self._unknown])

    def draft(self, wanted: Sequence[tuple[int, Entry, int]], guess: Guess) -> list[list[Entry]]:
        """Drafts the next entries of slots.

        Args:
            wanted: the slot, the entry at its end, which the model has not computed, and how many entries to draft.
            guess: chooses a token from each row of logits.

        Returns:
            The drafted entries of each slot, as many as are wanted; none if pages or the context do not suffice, or if
            the slot has a gap.
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
        """Joins the threads of the head's decoder and frees its keys and values."""
        self._decoder.close()

    def _note(self, chunk: Chunk, states: _Rows) -> bool:
        """Adds the entries of a chunk to the waiting ones. Returns whether they must be computed at once."""
        tail = self._tails[chunk.slot]
        if tail.gap is not None:
            return False
        is_draft = len(chunk.entries) <= _MOST
        if chunk.rows or chunk.shift != tail.shift or (is_draft and len(tail.entries) + len(chunk.entries) > _MOST):
            self.settle(chunk.slot, chunk.start)
        tail.shift = chunk.shift
        skipped = max(0, tail.first - chunk.start)  # the model computed these again for a recurrent state
        kept = max(0, chunk.start - tail.first)
        if chunk.rows:
            self._see_rows(tail, chunk, states)
            return False
        tail.entries[kept:] = chunk.entries[skipped:]
        tail.states[kept + 1 :] = list(states[skipped:])
        return not is_draft

    def _see_rows(self, tail: _Tail, chunk: Chunk, states: _Rows) -> None:
        """Computes a chunk that contains rows of images at once, in one pass."""
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
        """The chunks of the first pass of a draft: all waiting entries of each slot, and the entry at its end."""
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
        """Computes the given number of waiting entries of each slot, in as many passes as they need."""
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
        """The drafted entry after each part, and the head's hidden state from which it is drafted."""
        self._pass(parts, are_own=not is_first)
        token_ids = guess(self._logits_of_tokens(len(parts)), places)
        ends = np.cumsum([len(chunk.entries) for chunk, _ in parts]) - 1
        return list(zip(token_ids, self._states[ends].copy(), strict=True))

    def _logits_of_tokens(self, num_rows: int) -> _Rows:
        """The logits of the last pass, with a column for each token of the target model."""
        if self._token_ids is None:
            return self._logits[:num_rows]
        self._spread[:num_rows, self._token_ids] = self._logits[:num_rows, : len(self._token_ids)]
        return self._spread[:num_rows]

    def _pass(self, parts: list[_Part], *, are_own: bool = False) -> None:
        """Computes parts with hidden states of the model or, with `are_own`, of the head."""
        tokens, rows, num_rows, _, more = self._arrays.fill(tuple(chunk for chunk, _ in parts))
        states = np.stack([state for _, given in parts for state in given])
        if "inputs" in more:  # the rest of a row is for layers of the model
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
