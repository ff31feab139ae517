"""Rollback of recurrent states when drafts are rejected: to the state before a draft; accepted entries are recomputed.

```
positions   … | 40 | 41 | 42 | 43 | 44          a step computes 40 and drafts 41 … 44, keeping the state after 39
              | 40 | 41 | 42 |                  43 is rejected: back to the state after 39; 40 … 42 are missing
              | 40 | 41 | 42 | 43 | 44 | …      the next step recomputes them with its own entries, to the same bits
```

Missing entries cost rows of a step that is computed anyway. They get a pass of their own only if the state is exported
or copied, or if they do not fit into the step.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker import _native
from stoker.core.batch import Chunk


class StateTails:
    """The drafts and missing entries of all slots of a decoder with recurrent layers.

    Args:
        decoder: the decoder whose states are saved and rolled back.
    """

    def __init__(self, decoder: _native.Decoder) -> None:
        self._decoder = decoder
        self._drafts: dict[int, Chunk] = {}
        """For each slot the last draft, before which its state was saved."""
        self._missing: dict[int, Chunk] = {}
        """For each slot the entries that its state lacks, as a chunk without logits."""

    def missing(self, slots: Iterable[int]) -> list[Chunk]:
        """The entries that the states of these slots lack."""
        return [self._missing[slot] for slot in slots if slot in self._missing]

    def cut(self, slot: int, length: int) -> None:
        """Follows a slot that is cut to `length` positions: it loses the end of its last draft, or everything."""
        if length == 0:
            self._drafts.pop(slot, None)
            self._missing.pop(slot, None)
            return
        chunk = self._missing.get(slot) or self._drafts.pop(slot, None)
        assert chunk is not None, "a state cannot be cut back"
        assert chunk.start < length, "a state cannot be cut back so far"
        if slot not in self._missing:
            self._decoder.roll_back_state(slot)
        self._missing[slot] = chunk._replace(entries=chunk.entries[: length - chunk.start], num_logits=0)

    def with_missing(self, chunks: Iterable[Chunk]) -> tuple[Chunk, ...]:
        """These chunks, each preceded by the entries that the state of its slot lacks."""
        return tuple(self._whole(chunk) for chunk in chunks)

    def keep(self, chunks: Iterable[Chunk], *, are_drafts: bool) -> None:
        """Before the pass that computes these chunks: makes it save the state before the first entry of each draft."""
        kept = [chunk for chunk in chunks if are_drafts and len(chunk.entries) > 1]
        self._decoder.keep_states([(chunk.slot, self._num_missing(chunk.slot)) for chunk in kept])

    def commit(self, chunks: Iterable[Chunk], *, are_drafts: bool) -> None:
        """After the pass: the states of these chunks' slots are complete."""
        for chunk in chunks:
            self._missing.pop(chunk.slot, None)
            self._drafts.pop(chunk.slot, None)
            if are_drafts and len(chunk.entries) > 1:
                self._drafts[chunk.slot] = chunk

    def _whole(self, chunk: Chunk) -> Chunk:
        missing = self._missing.get(chunk.slot)
        if missing is None:
            return chunk
        assert missing.adapters == chunk.adapters, "a slot goes on with other adapters"
        return chunk._replace(start=missing.start, entries=missing.entries + chunk.entries)

    def _num_missing(self, slot: int) -> int:
        return len(self._missing[slot].entries) if slot in self._missing else 0
