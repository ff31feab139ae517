"""Which pages of the KV memory belong to which slot: tables, reference counts, copy on write. It touches no memory.

```
page:   PAGE_TOKENS positions of keys and values, over all layers
slot 0  [ 4 | 0 | 7 ]      length 80 of 96        tables[0] = 4 0 7 -1 …
slot 1  [ 4 | 0 | 2 ]      length 70: copied from slot 0 at 60, then went on by itself, so 7 was copied to 2 on write
```

Layers that see only a window have pages, and a ledger, of their own. Of each slot it keeps the last ones:

```
window  [ -1 | -1 | 5 ]    length 80, keep 10: positions 70 … 79 can be seen again, so 64 … 95 stay
```

Pages by reference count: PagedAttention, arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stoker.core.batch import Chunk

PAGE_TOKENS = 32
"""Positions in a page: what the kernels are built for."""

_NONE = -1


class PageLedger:
    """Pages of `num_slots` sequences of at most `max_tokens` tokens that together hold `kv_tokens` different cells.

    Enough pages for every way to share and to diverge: one for every full page of cells, and for each slot one that
    its own end, and one that its divergence from another, leaves partly filled.

    Args:
        kv_tokens: different cells.
        num_slots: sequences.
        max_tokens: of a sequence.
        keep: how many positions before its end a slot keeps; 0 = all. Then only whole slots can be copied.
    """

    def __init__(self, *, kv_tokens: int, num_slots: int, max_tokens: int, keep: int = 0) -> None:
        self.num_pages = num_pages(kv_tokens=kv_tokens, num_slots=num_slots)
        self.tables: NDArray[np.int32] = np.full((num_slots, pages_for(max_tokens)), _NONE, dtype=np.int32)
        """For each slot its pages in order, then -1. Shape `(num_slots, pages of max_tokens)`."""
        self._lengths = [0] * num_slots
        self._writable = [0] * num_slots
        """Up to here each slot can be written to without another look: its pages are allocated, and not shared."""
        self._keep = keep
        self._first = [0] * num_slots
        """The first page that each slot still has."""
        self._references = [0] * self.num_pages
        # The lowest page last: what was used lately is used again, and memory that was never needed is never touched.
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
        """The free pages as ranges `first … last-1`. From now on the lowest of them is handed out first."""
        self._free.sort(reverse=True)
        runs: list[tuple[int, int]] = []
        for page in reversed(self._free):
            if runs and runs[-1][1] == page:
                runs[-1] = runs[-1][0], page + 1
            else:
                runs.append((page, page + 1))
        return runs

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Positions 0 … length-1 of `source` appear in the empty slot `target`; no page is used for it."""
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
        """The slot keeps its first `length` positions."""
        assert 0 <= length <= self._lengths[slot], f"slot {slot} has no {length} positions"
        first, last = max(pages_for(length), self._first[slot]), pages_for(self._lengths[slot])
        self._release(self._pages(slot, first, last))
        self.tables[slot, first:last] = _NONE
        self._lengths[slot], self._writable[slot] = length, 0
        if length == 0:
            self._first[slot] = 0

    def skip(self, slot: int, start: int) -> None:
        """Positions before `start` of an empty slot are not needed: `prepare` takes no page for them."""
        assert self._lengths[slot] == 0, f"slot {slot} is not empty"
        self._first[slot] = start // PAGE_TOKENS

    def prepare(self, slot: int, end: int) -> tuple[int, int] | None:
        """Makes the positions from the slot's length to `end` writable, without lengthening it yet.

        Returns:
            A page and the one that its content must be copied to before anything is written; None if nothing shared
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
        """`prepare` for each of these, which go on where their slots end; returns the pages to be copied."""
        copied: list[tuple[int, int]] = []
        for slot, start, entries, _, _, _, _ in chunks:
            assert start == self._lengths[slot], f"a hole or an overlap in slot {slot}"
            end = start + len(entries)
            if end > self._writable[slot] and (pages := self.prepare(slot, end)) is not None:
                copied.append(pages)
        return copied

    def commit(self, slot: int, end: int) -> None:
        """What was prepared is written: the slot is `end` positions long. Pages before those that are kept are free."""
        self._lengths[slot] = end
        if self._keep and (first := (end - self._keep) // PAGE_TOKENS) > self._first[slot]:
            self._release(self._pages(slot, self._first[slot], first))
            self.tables[slot, self._first[slot] : first] = _NONE
            self._first[slot] = first

    def commit_each(self, chunks: Iterable[Chunk]) -> None:
        """`commit` for each of these."""
        if self._keep:
            for chunk in chunks:
                self.commit(chunk.slot, chunk.end)
            return
        for slot, start, entries, _, _, _, _ in chunks:
            self._lengths[slot] = start + len(entries)

    def abandon(self, slot: int) -> None:
        """What was prepared is not written: the pages behind the slot's length are free again."""
        self._writable[slot] = 0
        row = self.tables[slot]
        last = self._first[slot] + int(np.count_nonzero(row != _NONE))
        first = max(pages_for(self._lengths[slot]), self._first[slot])
        self._release(self._pages(slot, first, last))
        row[first:last] = _NONE
        if self._lengths[slot] == 0:
            self._first[slot] = 0

    def check_integrity(self) -> None:
        """Asserts that tables, reference counts and free pages add up."""
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
    """Pages that so many consecutive positions lie in."""
    return -(-num_tokens // PAGE_TOKENS)


def num_pages(*, kv_tokens: int, num_slots: int) -> int:
    """Pages that are enough for `kv_tokens` different cells in `num_slots` slots, however they share them.

    Beyond the full pages of cells, a page exists only because a sequence ends inside it, or leaves another one inside
    it: at most `num_slots` ends, and at most `num_slots - 1` partings.
    """
    return pages_for(kv_tokens) + 2 * num_slots
