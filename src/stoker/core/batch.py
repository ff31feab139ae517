"""The plan of one step, immutable: everything that the scheduler tells a backend to compute. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stoker.core.media import RowPiece

Entry: TypeAlias = int
"""One position of a sequence: a token id, or a negative number for a row of an image (`Span.entries`)."""

AdapterSet: TypeAlias = tuple[tuple[str, float], ...]
"""LoRA adapters in the order of their application: a name for the content of each, and its scale. Empty = none."""


@dataclass(frozen=True, slots=True)
class CopyPrefix:
    """Copies the KV of positions `0 … length-1` from slot `source` to the empty slot `target`."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cuts a slot back to its first `length` positions; 0 empties it."""

    slot: int
    length: int


CacheOp: TypeAlias = CopyPrefix | Truncate


@dataclass(frozen=True, slots=True)
class Transfer:
    """An export or import of the KV of positions `start … end-1` of a slot; `key` names the KV in the tiers."""

    slot: int
    start: int
    end: int
    key: bytes
    has_state: bool = True
    """Includes the recurrent state of the slot, which is then exactly `end` long (`CacheTraits.exports_apart`)."""

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
    """Adapters of the chunk; the same for all chunks of a step, unless `ModelInfo.mixes_adapters`."""
    rows: tuple[RowPiece, ...] = ()
    """The image rows among the entries, in order."""
    shift: int = 0
    """Rotary position of the first entry minus its index; not 0 after images with two-dimensional rotary positions."""

    @property
    def end(self) -> int:
        return self.start + len(self.entries)


class Batch(NamedTuple):
    """One step: first the cache operations in order, then one forward pass over all chunks, if there are any.

    A slot has at most one chunk. The rows of logits have the order of the chunks. `Backend.forward` ignores `imports`:
    the engine makes them afterward, into slots that have no chunk.
    """

    step_id: int
    chunks: tuple[Chunk, ...]
    ops: tuple[CacheOp, ...] = ()
    imports: tuple[Transfer, ...] = ()
    num_drafted: int = 0
    """Number of drafted entries (speculative decoding). Unless it is 0, every chunk is a decode, some with a draft."""

    @property
    def num_tokens(self) -> int:
        return sum([len(chunk.entries) for chunk in self.chunks])

    def prompt_sizes(self) -> tuple[int, int, int]:
        """Prompt chunks (several entries, no drafts): their number, their entries, and the positions attended to."""
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
