"""Speculative decoding with a draft head that attends to the target model's KV and needs only a slot's last state.

```
positions       … | 43 | 44 | 45        45: the entry that the model computes next
hidden states     | 43 | 44 |           of the rows with logits: a slot that loses a draft's end still ends with one
1st pass                      45  -> a  and a hidden state of the head; it sees the positions before 45
2nd pass                      a   -> b  at the same position
```
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.base import Guess
from stoker.backends.native.batch_arrays import BatchArrays
from stoker.backends.native.draft_head import HeadInput
from stoker.backends.native.kv_pages import KVPages
from stoker.backends.native.spec import DecoderSpec
from stoker.core.batch import Chunk, Entry
from stoker.core.model_info import ModelInfo

_Rows = NDArray[np.float32]
_Part = tuple[int, Entry, _Rows]
"""A slot, the entry after which the head drafts, and the hidden state before that entry."""


@dataclass(slots=True)
class _Known:
    first: int = 0
    """Position of the first state."""
    states: list[_Rows] = field(default_factory=list[_Rows])
    """Hidden states of consecutive positions."""

    @property
    def end(self) -> int:
        return self.first + len(self.states)


class LentHead:
    """The draft head of one model. The thread that runs the model's forward passes is the only one that uses it.

    Args:
        decoder: the decoder of the head. `close` closes it.
        spec: the description of the head.
        info: sizes of the target model.
        arrays: the arrays to which batches are written.
        pages: the KV pages of the target model.
    """

    def __init__(
        self, decoder: _native.Decoder, spec: DecoderSpec, info: ModelInfo, arrays: BatchArrays, pages: KVPages
    ) -> None:
        assert spec.join is not None, "it is no draft head"
        self._decoder, self._arrays, self._pages = decoder, arrays, pages
        width = spec.join.hidden_size
        self._logits: _Rows = np.empty((info.num_slots, spec.head.num_rows), dtype=np.float32)
        self._states: _Rows = np.empty((info.num_slots, width), dtype=np.float32)
        self._given: _Rows = np.empty((0, width), dtype=np.float32)
        self._known = [_Known() for _ in range(info.num_slots)]

    def wanted_states(self, chunks: Sequence[Chunk], num_entries: int) -> HeadInput:
        """Where the model must write the hidden states of rows with logits when it computes these chunks."""
        num_rows = sum(chunk.num_logits for chunk in chunks)
        if num_rows > len(self._given):
            self._given = np.empty((num_rows, self._given.shape[1]), dtype=np.float32)
        return HeadInput(logit_hidden=self._given[:num_rows])

    def can_draft(self, slot: int) -> bool:
        """Whether the hidden state of the last position of a slot is known."""
        known = self._known[slot]
        return bool(known.states) and known.end == self._pages.length(slot)

    def num_waiting(self, slot: int) -> int:
        """Always 0: the head need not compute entries before it drafts."""
        return 0

    def follow(self, chunks: Iterable[Chunk]) -> None:
        """Takes the hidden states of these chunks, which the model wrote to the array of `wanted_states`."""
        row = 0
        for chunk in chunks:
            behind = row + chunk.num_logits
            self._known[chunk.slot] = _Known(chunk.end - chunk.num_logits, list(self._given[row:behind].copy()))
            row = behind

    def settle(self, slot: int, end: int) -> None:
        """Does nothing: the head has no KV that must be complete before positions are copied."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Follows the model's copy of a prefix of `length` positions from slot `source` to slot `target`."""
        known = self._known[source]
        self._known[target] = _Known(known.first, list(known.states))
        self.cut(target, length)

    def cut(self, slot: int, length: int) -> None:
        """Follows the model when a slot is cut to `length` positions, or gets a prefix of that length."""
        known = self._known[slot]
        if known.end != length:
            self._known[slot] = _Known(known.first, known.states[: max(0, length - known.first)])

    def draft(self, wanted: Sequence[tuple[int, Entry, int]], guess: Guess) -> list[list[Entry]]:
        """Drafts the next entries of slots.

        Args:
            wanted: the slot, the entry at its end, which the model has not computed, and how many entries to draft.
            guess: chooses a token from each row of logits.

        Returns:
            The drafted entries of each slot, as many as are wanted; none if the slot's last hidden state is not known.
        """
        drafts: dict[int, list[Entry]] = {slot: [] for slot, _, _ in wanted}
        most = {slot: count for slot, _, count in wanted if count > 0 and self.can_draft(slot)}
        parts: list[_Part] = [(slot, entry, self._known[slot].states[-1]) for slot, entry, _ in wanted if slot in most]
        while parts:
            places = [(slot, len(drafts[slot])) for slot, _, _ in parts]
            self._pass(parts)
            found = guess(self._logits[: len(parts)], places)
            states = self._states[: len(parts)].copy()
            for (slot, _), entry in zip(places, found, strict=True):
                drafts[slot].append(entry)
            parts = [
                (slot, entry, states[row])
                for row, ((slot, _), entry) in enumerate(zip(places, found, strict=True))
                if len(drafts[slot]) < most[slot]
            ]
        return [drafts[slot] for slot, _, _ in wanted]

    def close(self) -> None:
        """Joins the threads of the head's decoder."""
        self._decoder.close()

    def _pass(self, parts: list[_Part]) -> None:
        chunks = tuple(Chunk(slot, self._pages.length(slot), (entry,), 1) for slot, entry, _ in parts)
        tokens, rows, num_rows, _, _ = self._arrays.fill(chunks)
        self._decoder.forward(
            tokens,
            rows,
            self._pages.ledger.tables,
            self._logits[:num_rows],
            hidden=self._states[:num_rows],
            joined=np.stack([state for _, _, state in parts]),
            window_tables=self._pages.window_tables,
        )
