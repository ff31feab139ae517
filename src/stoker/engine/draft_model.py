"""Speculative decoding with a draft model: a smaller model keeps its own KV of sequences and drafts their next tokens.

```
    sequence     the cat sat on the | mat
    slot         the cat sat on the                  entries without KV are computed in the first pass
    1st pass                          mat   -> .
    2nd pass                                .   -> The            one row of logits for each sequence
    afterwards   the cat sat on the   mat   .        compared with the accepted tokens, and cut where it differs
```

The draft model has its own slots. A preempted or paused sequence finds its slot again unless the slot was reused. A
sequence that continues a finished conversation reuses its slot. The target model decides which drafts are accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from stoker.backends.base import Backend, Logits
from stoker.core.batch import Batch, CacheOp, Chunk, Entry, Truncate
from stoker.core.draft_port import Drafted
from stoker.core.sequence import CacheKey, Sequence
from stoker.errors import BackendError

logger = logging.getLogger(__name__)

_NOTHING = Drafted([], 0, 0, 0.0)

GuessOfSequences: TypeAlias = Callable[[Logits, Ordered[tuple[Sequence, int]]], list[Entry]]
"""Chooses a likely token from each row of logits, given the row's sequence and how many entries were drafted before."""


@dataclass(slots=True, eq=False)
class _Slot:
    index: int
    entries: list[Entry] = field(default_factory=list[Entry])
    """Entries whose KV is in the slot."""
    num_sure: int = 0
    """Number of leading entries known to equal those of the sequence."""
    sequence: Sequence | None = None
    """The sequence that uses the slot, or used it last."""
    key: CacheKey | None = None
    last_used: int = 0

    @property
    def is_running(self) -> bool:
        return self.sequence is not None and self.sequence.slot is not None


class DraftModel:
    """A `DraftPort` that drafts with a loaded model. The engine's thread calls it.

    Args:
        backend: the draft model's backend. It can truncate its slots to any length, and has more slots than sequences
            run at the same time. `close` closes it.
        vocab_size: vocabulary size of the target model.
        guess: chooses tokens from logits.
        clock: seconds; only differences count.
    """

    def __init__(self, backend: Backend, vocab_size: int, guess: GuessOfSequences, clock: Callable[[], float]) -> None:
        assert backend.info.traits.can_truncate
        self._backend = backend
        self._info = info = backend.info
        self._num_tokens = min(vocab_size, info.vocab_size)
        """Number of tokens that both models have; further ones are padding of a model's file."""
        self._guess = guess
        self._clock = clock
        self._slots = [_Slot(index) for index in range(info.num_slots)]
        self._by_sequence: dict[Sequence, _Slot] = {}
        self._ops: list[CacheOp] = []
        """Truncations of slots, to be made with the next batch."""
        self._ticks = count(1)
        self._is_broken = False

    def num_missing(self, sequence: Sequence) -> int | None:
        """See `DraftPort.num_missing`."""
        end = len(sequence.entries)
        if self._is_broken or end >= self._info.max_sequence_tokens:
            return None
        slot = self._slot_of(sequence)
        if any(not 0 <= entry < self._info.vocab_size for entry in sequence.entries[len(slot.entries) :]):
            return None
        return end - 1 - len(slot.entries)

    def catch_up(self, sequence: Sequence, most: int) -> Drafted:
        """See `DraftPort.catch_up`."""
        slot = self._slot_of(sequence)
        begin = len(slot.entries)
        entries = sequence.entries[begin : min(begin + most, len(sequence.entries) - 1)]
        if not entries or not self._make_room(len(entries), {slot}):
            return _NOTHING
        began = self._clock()
        if self._compute([(slot, entries)], None) is None:
            return _NOTHING
        return Drafted([], 0, len(entries), self._clock() - began)

    def draft(self, wanted: Ordered[tuple[Sequence, int]]) -> Drafted:
        """See `DraftPort.draft`."""
        began = self._clock()
        slots = [self._slot_of(sequence) for sequence, _ in wanted]
        most = [min(num, self._info.max_sequence_tokens - len(sequence.entries)) for sequence, num in wanted]
        missing = [its.entries[len(slot.entries) :] for (its, _), slot in zip(wanted, slots, strict=True)]
        num_missing = sum(map(len, missing)) - len(missing)
        drafts: list[list[Entry]] = [[] for _ in wanted]
        if not self._make_room(sum(map(len, missing)) + sum(most), set(slots)):
            return Drafted(drafts, 0, 0, 0.0)
        pending = {index: entries for index, entries in enumerate(missing) if most[index] > 0}
        num_passes = 0
        while pending:
            found = self._compute([(slots[index], entries) for index, entries in pending.items()], num_passes)
            if found is None:
                return Drafted([[] for _ in wanted], 0, 0, 0.0)
            num_passes += 1
            for index, entry in zip(pending, found, strict=True):
                drafts[index].append(entry)
            pending = {index: drafts[index][-1:] for index in pending if len(drafts[index]) < most[index]}
        return Drafted(drafts, num_passes, num_missing, self._clock() - began)

    def warm_up(self) -> None:
        """See `DraftPort.warm_up`."""
        self._backend.forward(Batch(next(self._ticks), (Chunk(0, 0, (0,), 1),)))
        self._ops.append(Truncate(0, 0))

    def close(self) -> None:
        """See `DraftPort.close`."""
        self._backend.close()

    def _slot_of(self, sequence: Sequence) -> _Slot:
        """The slot of a sequence, truncated to the entries that equal those of the sequence."""
        slot = self._by_sequence.get(sequence) or self._taken(sequence)
        slot.last_used = next(self._ticks)
        num_right = _num_common(slot.entries, sequence.entries, slot.num_sure)
        num_right = min(num_right, len(sequence.entries) - 1)  # the last entry is always computed, for its logits
        self._cut(slot, num_right)
        slot.num_sure = num_right
        return slot

    def _taken(self, sequence: Sequence) -> _Slot:
        """Gives an idle slot to a sequence: the one with the longest common prefix, or the least recently used."""
        key, entries = sequence.cache_key, sequence.entries
        idle = [slot for slot in self._slots if not slot.is_running]
        same = {slot: _num_common(slot.entries, entries, 0) if slot.key == key else 0 for slot in idle}
        slot = max(idle, key=lambda slot: (same[slot], -slot.last_used))
        if slot.sequence is not None:
            self._by_sequence.pop(slot.sequence, None)
        self._cut(slot, same[slot])
        slot.num_sure = len(slot.entries)
        slot.sequence, slot.key = sequence, key
        self._by_sequence[sequence] = slot
        return slot

    def _make_room(self, num_entries: int, kept: set[_Slot]) -> bool:
        """Erases slots that are not running, least recently used first, until `num_entries` fit. False = no room."""
        left = self._info.kv_tokens - sum(len(slot.entries) for slot in self._slots) - num_entries
        for slot in sorted(self._slots, key=lambda slot: slot.last_used):
            if left >= 0:
                break
            if slot not in kept and not slot.is_running:
                left += len(slot.entries)
                self._forget(slot)
        return left >= 0

    def _forget(self, slot: _Slot) -> None:
        self._cut(slot, 0)
        if slot.sequence is not None:
            self._by_sequence.pop(slot.sequence, None)
        slot.sequence, slot.key, slot.num_sure = None, None, 0

    def _cut(self, slot: _Slot, length: int) -> None:
        if length < len(slot.entries):
            self._ops.append(Truncate(slot.index, length))
            del slot.entries[length:]
            slot.num_sure = min(slot.num_sure, length)

    def _compute(self, parts: list[tuple[_Slot, list[Entry]]], ahead: int | None) -> list[Entry] | None:
        """Computes entries of some slots, in as many batches as they need.

        Args:
            parts: slots, with the entries to append to each.
            ahead: how many entries were drafted before these; None = draft nothing.

        Returns:
            The drafted entry after each part; None = the draft model failed and is now turned off.
        """
        found: list[Entry] = []
        try:
            for chunks in self._batches(parts, has_logits=ahead is not None):
                logits = self._backend.forward(Batch(next(self._ticks), chunks, tuple(self._ops)))
                self._ops.clear()
                if ahead is not None and len(logits):
                    places = [(self._sequence_in(chunk.slot), ahead) for chunk in chunks if chunk.num_logits]
                    found += self._guess(logits[:, : self._num_tokens], places)
        except BackendError as error:
            logger.warning("the draft model is turned off: %s", error.message)
            self._is_broken = True
            return None
        for slot, entries in parts:
            slot.entries += entries
        return found

    def _sequence_in(self, slot: int) -> Sequence:
        sequence = self._slots[slot].sequence
        assert sequence is not None, "it is drafted for"
        return sequence

    def _batches(self, parts: list[tuple[_Slot, list[Entry]]], *, has_logits: bool) -> Iterator[tuple[Chunk, ...]]:
        chunks: list[Chunk] = []
        room = most = self._info.max_batch_tokens
        for slot, entries in parts:
            start = 0
            while start < len(entries):
                if room == 0 or (start and chunks):  # at most one chunk per slot in a batch
                    yield tuple(chunks)
                    chunks, room = [], most
                piece = entries[start : start + room]
                start, at, room = start + len(piece), len(slot.entries) + start, room - len(piece)
                num_logits = 1 if has_logits and start == len(entries) else 0
                chunks.append(Chunk(slot.index, at, tuple(piece), num_logits))
        if chunks:
            yield tuple(chunks)


def _num_common(left: list[Entry], right: list[Entry], start: int) -> int:
    """Length of the common prefix of two lists, whose first `start` entries are known to be equal."""
    end = min(len(left), len(right))
    if left[start:end] == right[start:end]:
        return end
    return next(index for index in range(start, end) if left[index] != right[index])
