"""The frozen plan of one step: all that passes from the core, which decides, to a backend, which computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stoker.core.media import RowPiece

Entry: TypeAlias = int
"""One position of a sequence: a token id, or below 0 a row of an image (`Span.entries`)."""

AdapterSet: TypeAlias = tuple[tuple[str, float], ...]
"""What names each adapter's content, with its scale, in the order in which they apply. Empty = the model alone."""


@dataclass(frozen=True, slots=True)
class CopyPrefix:
    """Positions `0 … length-1` of slot `source` appear in `target`, which is empty before."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Slot `slot` keeps its first `length` positions; 0 empties it."""

    slot: int
    length: int


CacheOp: TypeAlias = CopyPrefix | Truncate


@dataclass(frozen=True, slots=True)
class Transfer:
    """The KV of positions `start … end-1` of a slot on its way to or from the tiers, where its name is `key`."""

    slot: int
    start: int
    end: int
    key: bytes
    has_state: bool = True
    """With what the slot holds besides positions, which is then exactly `end` long (`CacheTraits.exports_apart`)."""

    @property
    def num_entries(self) -> int:
        return self.end - self.start


class Chunk(NamedTuple):
    """Consecutive entries of one slot. A decode is a chunk of one entry; with a draft of k entries, a chunk of k + 1.

    ```
    slot:   [ 0 … start-1 | start … start+len(entries)-1 ]
              already in    computed by this step; logits
              the cache     for the last num_logits of them
    ```
    """

    slot: int
    start: int
    entries: tuple[Entry, ...]
    num_logits: int = 0
    adapters: AdapterSet = ()
    """With which it is computed: the same in all chunks of a step, unless `ModelInfo.mixes_adapters`."""
    rows: tuple[RowPiece, ...] = ()
    """Which of the entries are rows of images, in their order."""
    shift: int = 0
    """Rotary position of the first entry, less its index; not 0 behind images that a model rotates by their grid."""

    @property
    def end(self) -> int:
        return self.start + len(self.entries)


class Batch(NamedTuple):
    """One step: first the cache operations in their order, then one forward pass over all chunks, if there are any.

    At most one chunk per slot. Rows of logits come out in the order of the chunks. Imports are not a backend's
    concern in `forward`: the engine makes them after it, into slots that have no chunk.
    """

    step_id: int
    chunks: tuple[Chunk, ...]
    ops: tuple[CacheOp, ...] = ()
    imports: tuple[Transfer, ...] = ()
    num_drafted: int = 0
    """Entries that are only guessed. If there are any, all chunks are decodes, with drafts or without."""

    @property
    def num_tokens(self) -> int:
        return sum([len(chunk.entries) for chunk in self.chunks])

    def prompt_sizes(self) -> tuple[int, int, int]:
        """Of the chunks of several entries: how many there are, their entries, and the positions these look back at."""
        num_chunks = num_entries = num_attended = 0
        if self.num_drafted:
            return 0, 0, 0
        for _, start, entries, _, _, _, _ in self.chunks:
            size = len(entries)
            if size > 1:
                num_chunks += 1
                num_entries += size
                num_attended += size * (2 * start + size) // 2
        return num_chunks, num_entries, num_attended

    @property
    def num_rows(self) -> int:
        return sum([chunk.num_logits for chunk in self.chunks])
