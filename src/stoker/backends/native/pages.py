"""Paged KV: which pages belong to which slot, with reference counts and copy on write. It touches no KV memory.

```
page:   PAGE_TOKENS positions of keys and values, over all layers
slot 0  [ 4 | 0 | 7 ]      length 80 of 96        tables[0] = 4 0 7 -1 …
slot 1  [ 4 | 0 | 2 ]      length 70: copied from slot 0 at 60, then grew by itself, so 7 was copied to 2 on write
```

Layers with a sliding window have separate pages, in a second ledger. It keeps only the last pages of each slot:

```
window  [ -1 | -1 | 5 ]    length 80, keep 10: positions 70 … 79 can be seen again, so 64 … 95 stay
```

Pages with reference counts: PagedAttention, arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stoker.core.batch import Chunk

PAGE_TOKENS = 32
"""Positions in a page. The kernels are compiled for this number."""

_NONE = -1


class PageLedger:
    """The page tables of all slots of one pool, and its free pages.

    There are enough pages for every way in which slots share and diverge: one for every full page of cells, and for
    each slot two partly filled pages, at its end and where it diverges from another slot.

    Args:
        kv_tokens: how many different positions (cells) all slots hold together, at most.
        num_slots: number of sequences.
        max_tokens: length of the longest sequence.
        keep: how many positions before its end a slot keeps; 0 = all. If not 0, only whole slots can be copied.
    """

    def __init__(self, *, kv_tokens: int, num_slots: int, max_tokens: int, keep: int = 0) -> None:
        self.num_pages = num_pages(kv_tokens=kv_tokens, num_slots=num_slots)
        self.tables: NDArray[np.int32] = np.full((num_slots, pages_for(max_tokens)), _NONE, dtype=np.int32)
        """For each slot its page numbers in order, then -1. Shape `(num_slots, pages of max_tokens)`."""
        self._lengths = [0] * num_slots
        self._writable = [0] * num_slots
        """For each slot the position up to which its pages are known to be allocated and not shared."""
        self._keep = keep
        self._first = [0] * num_slots
        """For each slot the index of the first page that it still has."""
        self._references = [0] * self.num_pages
        # The lowest page last: recently freed pages are reused first, and memory that is never needed is never touched.
        self._free = list(reversed(range(self.num_pages)))

    @property
    def num_used(self) -> int:
        return self.num_pages - len(self._free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def length(self, slot: int) -> int:
        """Positions that the slot holds."""
        return self._lengths[slot]

    def free_runs(self) -> list[tuple[int, int]]:
        """Returns the free pages as ranges `first … last-1`, and sorts them: the lowest is allocated next."""
        self._free.sort(reverse=True)
        runs: list[tuple[int, int]] = []
        for page in reversed(self._free):
            if runs and runs[-1][1] == page:
                runs[-1] = runs[-1][0], page + 1
            else:
                runs.append((page, page + 1))
        return runs

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Shares positions `0 … length-1` of `source` with the empty slot `target`, without allocating a page."""
        assert self._lengths[target] == 0, f"slot {target} is not empty"
        assert source != target
        assert 0 <= length <= self._lengths[source], f"slot {source} has no {length} positions"
        assert not self._keep or length == self._lengths[source], "a part of what has a window"
        first, count = self._first[source], pages_for(length)
        self.tables[target, :count] = self.tables[source, :count]
        for page in self._pages(target, first, count):
            self._references[page] += 1
        self._lengths[target], self._first[target] = length, first
        self._writable[source] = self._writable[target] = 0

    def truncate(self, slot: int, length: int) -> None:
        """Cuts the slot back to its first `length` positions and frees pages that no slot needs any more."""
        assert 0 <= length <= self._lengths[slot], f"slot {slot} has no {length} positions"
        first, last = max(pages_for(length), self._first[slot]), pages_for(self._lengths[slot])
        self._release(self._pages(slot, first, last))
        self.tables[slot, first:last] = _NONE
        self._lengths[slot], self._writable[slot] = length, 0
        if length == 0:
            self._first[slot] = 0

    def skip(self, slot: int, start: int) -> None:
        """Makes `prepare` allocate no pages for positions before `start` of an empty slot."""
        assert self._lengths[slot] == 0, f"slot {slot} is not empty"
        self._first[slot] = start // PAGE_TOKENS

    def prepare(self, slot: int, end: int) -> tuple[int, int] | None:
        """Makes the positions from the slot's length to `end` writable, without lengthening the slot.

        Returns:
            A shared page and the new page to which its content must be copied before the write; None if no shared page
            is written to.
        """
        start = self._lengths[slot]
        if start < end <= self._writable[slot]:
            return None
        assert start < end <= self.tables.shape[1] * PAGE_TOKENS, f"slot {slot} cannot grow from {start} to {end}"
        copied = self._own(slot, start // PAGE_TOKENS) if start % PAGE_TOKENS else None
        for index in range(max(pages_for(start), self._first[slot]), pages_for(end)):
            if self.tables[slot, index] == _NONE:
                self.tables[slot, index] = self._take()
        self._writable[slot] = pages_for(end) * PAGE_TOKENS
        return copied

    def prepare_each(self, chunks: Iterable[Chunk]) -> list[tuple[int, int]]:
        """`prepare` for each chunk, which begins where its slot ends. Returns pairs of pages to be copied."""
        copied: list[tuple[int, int]] = []
        for slot, start, entries, _, _, _, _ in chunks:
            assert start == self._lengths[slot], f"a hole or an overlap in slot {slot}"
            end = start + len(entries)
            if end > self._writable[slot] and (pages := self.prepare(slot, end)) is not None:
                copied.append(pages)
        return copied

    def commit(self, slot: int, end: int) -> None:
        """Lengthens the slot to `end` positions, which were written, and frees pages of positions that are not kept."""
        self._lengths[slot] = end
        if self._keep and (first := (end - self._keep) // PAGE_TOKENS) > self._first[slot]:
            self._release(self._pages(slot, self._first[slot], first))
            self.tables[slot, self._first[slot] : first] = _NONE
            self._first[slot] = first

    def commit_each(self, chunks: Iterable[Chunk]) -> None:
        """`commit` for each chunk."""
        if self._keep:
            for chunk in chunks:
                self.commit(chunk.slot, chunk.end)
            return
        for slot, start, entries, _, _, _, _ in chunks:
            self._lengths[slot] = start + len(entries)

    def abandon(self, slot: int) -> None:
        """Frees the pages after the slot's length, which were prepared and not written."""
        self._writable[slot] = 0
        row = self.tables[slot]
        last = self._first[slot] + int(np.count_nonzero(row != _NONE))
        first = max(pages_for(self._lengths[slot]), self._first[slot])
        self._release(self._pages(slot, first, last))
        row[first:last] = _NONE
        if self._lengths[slot] == 0:
            self._first[slot] = 0

    def check_integrity(self) -> None:
        """Asserts that page tables, reference counts and free pages are consistent."""
        counted = [0] * self.num_pages
        for slot, length in enumerate(self._lengths):
            first, count = self._first[slot], pages_for(length)
            assert first == 0 or (self._keep and first * PAGE_TOKENS <= length)
            assert (self.tables[slot, :first] == _NONE).all(), f"slot {slot} holds pages that nothing sees"
            assert (self.tables[slot, first:count] != _NONE).all()
            assert (self.tables[slot, count:] == _NONE).all(), f"slot {slot} holds pages behind its end"
            for page in self._pages(slot, first, count):
                counted[page] += 1
            if length % PAGE_TOKENS and length < self._writable[slot]:
                assert self._references[self.tables[slot, length // PAGE_TOKENS]] == 1, "a page of another slot"
        assert counted == self._references
        assert sorted(self._free) == [page for page, count in enumerate(counted) if count == 0]

    def _own(self, slot: int, index: int) -> tuple[int, int] | None:
        page = int(self.tables[slot, index])
        if self._references[page] == 1:
            return None
        self._references[page] -= 1
        replacement = self._take()
        self.tables[slot, index] = replacement
        return page, replacement

    def _take(self) -> int:
        assert self._free, "more cells in use than promised"
        page = self._free.pop()
        self._references[page] = 1
        return page

    def _release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)

    def _pages(self, slot: int, first: int, last: int) -> list[int]:
        return self.tables[slot, first:last].tolist()


def pages_for(num_tokens: int) -> int:
    """Number of pages for `num_tokens` consecutive positions, the first of which begins a page."""
    return -(-num_tokens // PAGE_TOKENS)


def num_pages(*, kv_tokens: int, num_slots: int) -> int:
    """Number of pages that suffices for `kv_tokens` different cells in `num_slots` slots, however slots share them.

    Besides full pages, a page exists only because a sequence ends inside it, or diverges from another sequence inside
    it: there are at most `num_slots` ends, and at most `num_slots - 1` divergences.
    """
    return pages_for(kv_tokens) + 2 * num_slots
