"""The pages of a decoder's slots: copied, made writable, and taken out and put back as bytes. It computes nothing.

```
exported   | page | page | …          and at the end of a slot, where layers with a window have pages of their own,
           | page | page | … of the positions | page | … of those that the next position sees
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
"""A model's decoder, and its draft head's if it has one: both keep keys and values in pages of the same numbers."""


class KVPages:
    """Which pages belong to which slot, and what is in them.

    Args:
        ledger: pages of the layers that keep every position.
        windows: pages of the layers with a window, if they are kept apart.
        window: the largest of any layer.
    """

    def __init__(self, ledger: PageLedger, windows: PageLedger | None, window: int) -> None:
        self.ledger = ledger
        """Pages of the layers that keep every position. They have parts of every decoder."""
        self._windows = windows
        self._window = window
        self._ledgers = (ledger,) if windows is None else (ledger, windows)

    @classmethod
    def plan(cls, info: ModelInfo, window: int) -> KVPages:
        """Enough pages for the cells of a model, however slots share them.

        Args:
            info: the sizes of its pools, and the number of its slots.
            window: the largest of any layer.
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
        """0 = there are none of their own."""
        return 0 if self._windows is None else self._windows.num_pages

    @property
    def num_used(self) -> int:
        """Pages that some slot holds, of windows too."""
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
        """Makes writable what these chunks compute; `commit_each` or `abandon` ends it."""
        for source, target in self.ledger.prepare_each(chunks):
            self.copy_page(decoders, source, target)
        if self._windows is not None:
            for source, target in self._windows.prepare_each(chunks):
                decoders[0].copy_page(source, target, is_window=True)

    @staticmethod
    def copy_page(decoders: Decoders, source: int, target: int) -> None:
        """Copies a page, with the parts of all decoders."""
        for decoder in decoders:
            decoder.copy_page(source, target)

    def give_back(self, decoders: Decoders) -> None:
        """The system has the memory of the free pages again; they can be used as before. Not for those of windows."""
        for first, last in self.ledger.free_runs():
            for decoder in decoders:
                decoder.give_back_pages(first, last)

    def commit_each(self, chunks: Sequence[Chunk]) -> None:
        """These chunks are computed."""
        for ledger in self._ledgers:
            ledger.commit_each(chunks)

    def abandon(self, slot: int) -> None:
        """What was prepared is not computed."""
        for ledger in self._ledgers:
            ledger.abandon(slot)

    def num_bytes(self, decoders: Decoders, start: int, end: int, *, has_windows: bool = True) -> int:
        """The size of these positions when they are exported; with the windows of the last one, if there are any."""
        num_bytes = (pages_for(end) - start // PAGE_TOKENS) * sum(decoder.page_bytes for decoder in decoders)
        if self._windows is None or not has_windows:
            return num_bytes
        num_window_pages = pages_for(end) - self._first_seen(end) // PAGE_TOKENS
        return num_bytes + num_window_pages * decoders[0].window_page_bytes

    def export(
        self, decoders: Decoders, slot: int, start: int, end: int, into: memoryview, *, has_windows: bool = True
    ) -> None:
        """Copies the pages that these positions lie in; with windows, `end` is the slot's length."""
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
        """Puts exported positions behind those that the slot holds. Without their windows, these are missing until an
        import that has them.
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
        """Asserts that every ledger adds up, and that the slots are equally long in both."""
        for ledger in self._ledgers:
            ledger.check_integrity()
        lengths = {tuple(ledger.length(slot) for slot in range(len(ledger.tables))) for ledger in self._ledgers}
        assert len(lengths) == 1

    def _first_seen(self, position: int) -> int:
        return max(0, position - self._window + 1)

    def _pages(self, ledger: PageLedger, slot: int, start: int, end: int) -> list[int]:
        return ledger.tables[slot, start // PAGE_TOKENS : pages_for(end)].tolist()
