"""The pages of a decoder's slots: copied, made writable, and taken out and put back as bytes. It computes nothing.

```
exported   | page | page | …          or, where layers with a window have pages of their own,
           | page | page | … of all positions | page | … of those that the next position sees
```
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.pages import PAGE_TOKENS, PageLedger, pages_for
from stoker.core.batch import Chunk
from stoker.core.model_info import WindowPool

MAX_DRAFT = 63
"""Entries that a window, or a state, can be cut back by."""


def window_reach(window: int) -> int:
    """Positions before the end of a slot whose pages it may hold, at most, of a window of this size."""
    return _kept(window) + PAGE_TOKENS - 1


def _kept(window: int) -> int:
    # What a draft is cut back to still sees its window.
    return window - 1 + MAX_DRAFT


class KVPages:
    """Which pages belong to which slot, and what is in them.

    Args:
        ledger: pages of the layers that keep every position.
        windows: pages of the layers with a window, if they are kept apart.
        window: the largest of any layer.
    """

    def __init__(self, ledger: PageLedger, windows: PageLedger | None, window: int) -> None:
        self._ledger = ledger
        self._windows = windows
        self._window = window
        self._ledgers = (ledger,) if windows is None else (ledger, windows)

    @classmethod
    def plan(
        cls, *, kv_tokens: int, num_slots: int, max_tokens: int, windows: WindowPool | None, window: int
    ) -> KVPages:
        """Enough pages for the given numbers of cells, however slots share them.

        Args:
            kv_tokens: cells of the layers that keep every position.
            num_slots: sequences.
            max_tokens: of a sequence.
            windows: cells of the layers with a window; None = they keep every position.
            window: the largest of any layer.
        """
        ledger = PageLedger(kv_tokens=kv_tokens, num_slots=num_slots, max_tokens=max_tokens)
        if windows is None:
            return cls(ledger, None, window)
        kept = _kept(window)
        of_windows = PageLedger(kv_tokens=windows.capacity, num_slots=num_slots, max_tokens=max_tokens, keep=kept)
        return cls(ledger, of_windows, window)

    @property
    def num_pages(self) -> int:
        return self._ledger.num_pages

    @property
    def num_window_pages(self) -> int:
        """0 = there are none of their own."""
        return 0 if self._windows is None else self._windows.num_pages

    @property
    def num_used(self) -> int:
        """Pages that some slot holds, of windows too."""
        return sum(ledger.num_used for ledger in self._ledgers)

    @property
    def tables(self) -> NDArray[np.int32]:
        """See `PageLedger.tables`."""
        return self._ledger.tables

    @property
    def window_tables(self) -> NDArray[np.int32] | None:
        return None if self._windows is None else self._windows.tables

    def length(self, slot: int) -> int:
        """Positions that the slot holds."""
        return self._ledger.length(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `PageLedger.copy_prefix`."""
        for ledger in self._ledgers:
            ledger.copy_prefix(source, target, length)

    def truncate(self, slot: int, length: int) -> None:
        """See `PageLedger.truncate`."""
        for ledger in self._ledgers:
            ledger.truncate(slot, length)

    def prepare_each(self, decoder: _native.Decoder, chunks: Sequence[Chunk]) -> None:
        """Makes writable what these chunks compute; `commit_each` or `abandon` ends it."""
        for ledger in self._ledgers:
            for source, target in ledger.prepare_each(chunks):
                decoder.copy_page(source, target, ledger is self._windows)

    def commit_each(self, chunks: Sequence[Chunk]) -> None:
        """These chunks are computed."""
        for ledger in self._ledgers:
            ledger.commit_each(chunks)

    def abandon(self, slot: int) -> None:
        """What was prepared is not computed."""
        for ledger in self._ledgers:
            ledger.abandon(slot)

    def num_bytes(self, decoder: _native.Decoder, start: int, end: int) -> int:
        """The size of these positions when they are exported."""
        num_pages = pages_for(end) - start // PAGE_TOKENS
        if self._windows is None:
            return num_pages * decoder.page_bytes
        num_window_pages = pages_for(end) - self._first_seen(end) // PAGE_TOKENS
        return num_pages * decoder.page_bytes + num_window_pages * decoder.window_page_bytes

    def export(self, decoder: _native.Decoder, slot: int, start: int, end: int, into: memoryview) -> None:
        """Copies the pages that these positions lie in; with windows, `start` is 0 and `end` the slot's length."""
        at = 0
        for page in self._pages(self._ledger, slot, start, end):
            decoder.export_page(page, into[at : at + decoder.page_bytes])
            at += decoder.page_bytes
        if self._windows is not None:
            assert start == 0, "a part of what has a window"
            for page in self._pages(self._windows, slot, self._first_seen(end), end):
                decoder.export_page(page, into[at : at + decoder.window_page_bytes], is_window=True)
                at += decoder.window_page_bytes

    def import_(self, decoder: _native.Decoder, slot: int, start: int, end: int, data: memoryview) -> None:
        """Puts exported positions behind those that the slot holds; with windows, into an empty slot."""
        assert self.length(slot) == start, "a hole or an overlap"
        if self._windows is not None:
            self._windows.skip(slot, self._first_seen(end))
        for ledger in self._ledgers:
            if (copied := ledger.prepare(slot, end)) is not None:
                decoder.copy_page(*copied, ledger is self._windows)
        at, size = 0, decoder.page_bytes
        first_page = start // PAGE_TOKENS
        for index, page in enumerate(self._pages(self._ledger, slot, start, end), first_page):
            begin = index * PAGE_TOKENS
            first, last = max(start - begin, 0), min(end - begin, PAGE_TOKENS)
            decoder.import_page(page, data[at : at + size], first, last)
            at += size
        if self._windows is not None:
            size = decoder.window_page_bytes
            for page in self._pages(self._windows, slot, self._first_seen(end), end):
                decoder.import_page(page, data[at : at + size], 0, PAGE_TOKENS, is_window=True)
                at += size
        for ledger in self._ledgers:
            ledger.commit(slot, end)

    def check_integrity(self) -> None:
        """Asserts that every ledger adds up, and that the slots are equally long in both."""
        for ledger in self._ledgers:
            ledger.check_integrity()
        lengths = {tuple(ledger.length(slot) for slot in range(len(ledger.tables))) for ledger in self._ledgers}
        assert len(lengths) == 1

    def _first_seen(self, position: int) -> int:
        return max(0, position - self._window + 1)

    def _pages(self, ledger: PageLedger, slot: int, start: int, end: int) -> list[int]:
        return ledger.tables[slot, start // PAGE_TOKENS : pages_for(end)].tolist()
