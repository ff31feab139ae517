"""Writes packed weights from memory to their file while the model serves requests. It packs nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from mmap import mmap

from stoker.backends.native.packed_file import PackedStore, Sink

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20
_FINISH_S = 20.0
"""Maximum time that closing waits for the file, so that short runs do not each pack the model again."""


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
