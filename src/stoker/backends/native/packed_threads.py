"""Threads that read packed weights ahead, or write their file, while the model serves requests. They pack nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from mmap import PAGESIZE, mmap

import numpy as np

from stoker.backends.native.packed_file import PackedStore, Sink

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20
_FINISH_S = 20.0
"""Maximum time that closing waits for the file, so that short runs do not each pack the model again."""


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


class Writing:
    """A thread that writes one packed file. The owner of the weights closes it.

    Args:
        store: the directory that gets the file.
        name: name of the file, see `packed_file.fingerprint`.
        memory: the packed weights; they do not change.
        finish_s: maximum time in seconds that `close` waits for an unfinished file.
    """

    def __init__(self, store: PackedStore, name: str, memory: mmap, finish_s: float = _FINISH_S) -> None:
        self._store, self._name, self._memory = store, name, memory
        self._finish_s = finish_s
        self._gave_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-packed-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits up to `finish_s` for the file; then makes the thread remove it, and waits up to `finish_s` for that."""
        self._thread.join(self._finish_s)
        self._gave_up.set()
        self._thread.join(self._finish_s)

    def _run(self) -> None:
        try:
            fill = partial(copy_packed, self._memory, check=self._check)
            self._store.open(self._name, len(self._memory), fill)
        except _Abandoned:
            logger.info("the packed weights were not written in time, and will be packed again next time")

    def _check(self) -> None:
        if self._gave_up.is_set():
            raise _Abandoned


class _Abandoned(Exception):
    """Ends the copy: the weights were closed before their file was complete."""


def copy_packed(source: mmap, sink: Sink, check: Callable[[], None] | None = None) -> None:
    """Writes all packed bytes to `sink`, piece by piece. `check` is called before each piece; it may raise to abort."""
    with memoryview(source) as data:
        for start in range(0, len(data), _PIECE_BYTES):
            if check is not None:
                check()
            with data[start : start + _PIECE_BYTES] as piece:
                sink.write(start, piece)
