"""A draft head that sees the keys and values of the model and keeps none: of a slot it needs the last state alone.

```
positions       … | 43 | 44 | 45        45: the entry that the model computes next
hidden states     | 43 | 44 |           of the rows of logits: a draft that is cut back still ends with one of them
1st pass                      45  -> a  and a hidden state of its own; it sees the positions before 45
2nd pass                      a   -> b  at the same position
```

This module decides nothing.
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
"""A slot, the entry that is guessed from, and the state before it."""


@dataclass(slots=True)
class _Known:
    first: int = 0
    """Position of the first state."""
    states: list[_Rows] = field(default_factory=list[_Rows])
    """Of consecutive positions."""

    @property
    def end(self) -> int:
        return self.first + len(self.states)


class LentHead:
    """The head of one model, beside its decoder. One thread uses both.

    Args:
        decoder: of the head. `close` closes it.
        spec: of the head.
        info: of the model.
        arrays: that batches are written to.
        pages: of the model.
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
        """Where the model is to write what the head reads when it computes these."""
        num_rows = sum(chunk.num_logits for chunk in chunks)
        if num_rows > len(self._given):
            self._given = np.empty((num_rows, self._given.shape[1]), dtype=np.float32)
        return HeadInput(logit_hidden=self._given[:num_rows])

    def can_draft(self, slot: int) -> bool:
        """Whether the last state of a slot is known."""
        known = self._known[slot]
        return bool(known.states) and known.end == self._pages.length(slot)

    def num_waiting(self, slot: int) -> int:
        """Entries that are seen with the next guess: it needs none."""
        return 0

    def follow(self, chunks: Iterable[Chunk]) -> None:
        """The model has computed these, and has written what was wanted."""
        row = 0
        for chunk in chunks:
            behind = row + chunk.num_logits
            self._known[chunk.slot] = _Known(chunk.end - chunk.num_logits, list(self._given[row:behind].copy()))
            row = behind

    def settle(self, slot: int, end: int) -> None:
        """Positions before `end` are to be copied: the head keeps nothing of them."""

    def copy(self, source: int, target: int, length: int) -> None:
        """A prefix of one slot has appeared in another one."""
        known = self._known[source]
        self._known[target] = _Known(known.first, list(known.states))
        self.cut(target, length)

    def cut(self, slot: int, length: int) -> None:
        """The slot has become shorter, or a prefix of so many positions has appeared in it."""
        known = self._known[slot]
        if known.end != length:
            self._known[slot] = _Known(known.first, known.states[: max(0, length - known.first)])

    def draft(self, wanted: Sequence[tuple[int, Entry, int]], guess: Guess) -> list[list[Entry]]:
        """Guesses how slots go on.

        Args:
            wanted: slot, the entry at its end, which the model has not computed, and how many entries more.
            guess: chooses from logits.

        Returns:
            As many for each, or none where the state before it is not known.
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
        """Joins its threads."""
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
