"""How the end of a state is cut off: back to the state before a draft, from which what is left of it is computed again.

```
positions   … | 40 | 41 | 42 | 43 | 44          a step computes 40 and drafts 41 … 44, keeping the state after 39
              | 40 | 41 | 42 |                  43 was wrong: back to the state after 39; 40 … 42 are missing
              | 40 | 41 | 42 | 43 | 44 | …      the next step computes them with its own, as the same bits
```

What is missing costs rows of a step that is computed anyway. It is computed by itself only if the state is exported or
copied.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker import _native
from stoker.core.batch import Chunk


class StateTails:
    """Of the slots of a decoder with recurrent layers.

    Args:
        decoder: whose states are kept and rolled back.
    """

    def __init__(self, decoder: _native.Decoder) -> None:
        self._decoder = decoder
        self._drafts: dict[int, Chunk] = {}
        """By slot the chunk before which its state was kept."""
        self._missing: dict[int, Chunk] = {}
        """By slot what its state lacks, of which no logits are wanted."""

    def missing(self, slots: Iterable[int]) -> list[Chunk]:
        """What the states of these lack."""
        return [self._missing[slot] for slot in slots if slot in self._missing]

    def cut(self, slot: int, length: int) -> None:
        """A slot has become shorter: it has lost some of its last draft, or everything."""
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
        """These chunks, each behind what the state of its slot lacks."""
        return tuple(self._whole(chunk) for chunk in chunks)

    def keep(self, chunks: Iterable[Chunk], *, are_drafts: bool) -> None:
        """The next pass computes these: of drafts the state before the first entry is kept."""
        kept = [chunk for chunk in chunks if are_drafts and len(chunk.entries) > 1]
        self._decoder.keep_states([(chunk.slot, self._num_missing(chunk.slot)) for chunk in kept])

    def commit(self, chunks: Iterable[Chunk], *, are_drafts: bool) -> None:
        """The pass is over: these slots lack nothing."""
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
