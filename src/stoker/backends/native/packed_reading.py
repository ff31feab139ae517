"""Reads a mapped file of packed weights from disk ahead of its use. It changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from mmap import PAGESIZE, mmap

import numpy as np

_PIECE_BYTES = 16 << 20


class Reading:
    """A thread that touches each page of a mapping once. The owner of the weights closes it.

    Without it, each page is read on its first use: with experts, some of the first fifty steps wait for the disk.
    Unlike `posix_fadvise`, touching pages lets the mapping determine their size.
    """

    def __init__(self, memory: mmap) -> None:
        self._is_closed = threading.Event()
        self._thread = threading.Thread(
            target=touch_pages, args=(memory, self._is_closed.is_set), name="stoker-packed-reading", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after the piece that it is reading."""
        self._is_closed.set()
        self._thread.join()


def touch_pages(memory: mmap, is_over: Callable[[], bool]) -> None:
    """Reads a byte of each page, from the first to the last, until `is_over`, which is asked between pieces."""
    values = np.frombuffer(memory, dtype=np.uint8)
    for start in range(0, len(values), _PIECE_BYTES):
        if is_over():
            return
        values[start : start + _PIECE_BYTES : PAGESIZE].sum()  # numpy releases the GIL
