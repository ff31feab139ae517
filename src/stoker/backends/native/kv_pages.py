"""The KV pages of a decoder's slots: copy on write, export and import as bytes. No attention is computed here.

```
exported   | page | page | …          at the end of a slot, if layers with a window have pages of their own, also these:
           | page | page | … of all positions | window page | … of the positions that the next position sees
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.pages import PAGE_TOKENS, PageLedger, pages_for
from stoker.backends.native.windows import kept_positions
from stoker.core.batch import Chunk
from stoker.core.model_info import ModelInfo

Decoders: TypeAlias = Sequence[_native.Decoder]
"""The model's decoder, then that of its draft head, if any. Both keep keys and values under the same page numbers."""


class KVPages:
    """The KV pages of all slots of one model: which slot holds which page, and the content of the pages.

    Args:
        ledger: pages of the layers that keep every position.
        windows: pages of the layers with a sliding window, if these are separate.
        window: the largest window of any layer, in positions.
    """

    def __init__(self, ledger: PageLedger, windows: PageLedger | None, window: int) -> None:
        self.ledger = ledger
        """Pages of the layers that keep every position. Each page has a part for every decoder."""
        self._windows = windows
        self._window = window
        self._ledgers = (ledger,) if windows is None else (ledger, windows)

    @classmethod
    def plan(cls, info: ModelInfo, window: int) -> KVPages:
        """Creates as many pages as the cells of a model need, however its slots share them.

        Args:
            info: the sizes of the model's KV pools, and the number of its slots.
            window: the largest window of any layer, in positions.
        """
        sizes = {"num_slots": info.num_slots, "max_tokens": info.max_sequence_tokens}
        ledger = PageLedger(kv_tokens=max(info.kv_tokens, info.most_kv_tokens), **sizes)
        if info.windows is None:
            return cls(ledger, None, window)
        return cls(ledger, PageLedger(kv_tokens=info.windows.capacity, **sizes, keep=kept_positions(window)), window)

    @property
    def num_pages(self) -> int:
        return self.ledger.num_pages

    @property
    def num_window_pages(self) -> int:
        """Number of separate pages for layers with a window; 0 = these layers have no separate pages."""
        return 0 if self._windows is None else self._windows.num_pages

    @property
    def num_used(self) -> int:
        """Pages that some slot holds, including those of windows."""
        return sum(ledger.num_used for ledger in self._ledgers)

    @property
    def window_tables(self) -> NDArray[np.int32] | None:
        return None if self._windows is None else self._windows.tables

    def length(self, slot: int) -> int:
        """Positions that the slot holds."""
        return self.ledger.length(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `PageLedger.copy_prefix`."""
        for ledger in self._ledgers:
            ledger.copy_prefix(source, target, length)

    def truncate(self, slot: int, length: int) -> None:
        """See `PageLedger.truncate`."""
        for ledger in self._ledgers:
            ledger.truncate(slot, length)

    def prepare_each(self, decoders: Decoders, chunks: Sequence[Chunk]) -> None:
        """Makes the positions of these chunks writable; `commit_each` or `abandon` must follow."""
        for source, target in self.ledger.prepare_each(chunks):
            self.copy_page(decoders, source, target)
        if self._windows is not None:
            for source, target in self._windows.prepare_each(chunks):
                decoders[0].copy_page(source, target, is_window=True)

    @staticmethod
    def copy_page(decoders: Decoders, source: int, target: int) -> None:
        """Copies a page of the layers that keep every position, with the parts of all decoders."""
        for decoder in decoders:
            decoder.copy_page(source, target)

    def give_back(self, decoders: Decoders) -> None:
        """Returns the memory of free pages, except those of windows, to the system; they stay usable."""
        for first, last in self.ledger.free_runs():
            for decoder in decoders:
                decoder.give_back_pages(first, last)

    def commit_each(self, chunks: Sequence[Chunk]) -> None:
        """Lengthens the slots of these chunks, which were prepared and are now computed."""
        for ledger in self._ledgers:
            ledger.commit_each(chunks)

    def abandon(self, slot: int) -> None:
        """Frees the pages that were prepared for a slot and not computed."""
        for ledger in self._ledgers:
            ledger.abandon(slot)

    def num_bytes(self, decoders: Decoders, start: int, end: int, *, has_windows: bool = True) -> int:
        """Bytes of these positions when exported; with `has_windows` including the window that position `end` sees."""
        num_bytes = (pages_for(end) - start // PAGE_TOKENS) * sum(decoder.page_bytes for decoder in decoders)
        if self._windows is None or not has_windows:
            return num_bytes
        num_window_pages = pages_for(end) - self._first_seen(end) // PAGE_TOKENS
        return num_bytes + num_window_pages * decoders[0].window_page_bytes

    def export(
        self, decoders: Decoders, slot: int, start: int, end: int, into: memoryview, *, has_windows: bool = True
    ) -> None:
        """Copies the pages that contain these positions to `into`; with windows, `end` is the slot's length."""
        for page in self._pages(self.ledger, slot, start, end):
            for decoder in decoders:
                decoder.export_page(page, into[: decoder.page_bytes])
                into = into[decoder.page_bytes :]
        if self._windows is not None and has_windows:
            size = decoders[0].window_page_bytes
            for page in self._pages(self._windows, slot, self._first_seen(end), end):
                decoders[0].export_page(page, into[:size], is_window=True)
                into = into[size:]

    def import_(
        self, decoders: Decoders, slot: int, start: int, end: int, data: memoryview, *, has_windows: bool = True
    ) -> None:
        """Appends exported positions to those that the slot holds. With `has_windows` false, the slot lacks its window
        until an import that has it.
        """
        assert self.length(slot) == start, "a hole or an overlap"
        if (copied := self.ledger.prepare(slot, end)) is not None:
            self.copy_page(decoders, *copied)
        first_page = start // PAGE_TOKENS
        for index, page in enumerate(self._pages(self.ledger, slot, start, end), first_page):
            begin = index * PAGE_TOKENS
            first, last = max(start - begin, 0), min(end - begin, PAGE_TOKENS)
            for decoder in decoders:
                decoder.import_page(page, data[: decoder.page_bytes], first, last)
                data = data[decoder.page_bytes :]
        if self._windows is not None:
            self._windows.truncate(slot, 0)
            self._windows.skip(slot, self._first_seen(end) if has_windows else end)
            if has_windows:
                self._import_window(decoders[0], self._windows, slot, end, data)
        for ledger in self._ledgers:
            ledger.commit(slot, end)

    def _import_window(
        self, decoder: _native.Decoder, windows: PageLedger, slot: int, end: int, data: memoryview
    ) -> None:
        windows.prepare(slot, end)
        size = decoder.window_page_bytes
        for page in self._pages(windows, slot, self._first_seen(end), end):
            decoder.import_page(page, data[:size], 0, PAGE_TOKENS, is_window=True)
            data = data[size:]

    def check_integrity(self) -> None:
        """Asserts that every ledger is consistent, and that each slot has the same length in both."""
        for ledger in self._ledgers:
            ledger.check_integrity()
        lengths = {tuple(ledger.length(slot) for slot in range(len(ledger.tables))) for ledger in self._ledgers}
        assert len(lengths) == 1

    def _first_seen(self, position: int) -> int:
        return max(0, position - self._window + 1)

    def _pages(self, ledger: PageLedger, slot: int, start: int, end: int) -> list[int]:
        return ledger.tables[slot, start // PAGE_TOKENS : pages_for(end)].tolist()
