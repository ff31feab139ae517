"""Writes packed weights that lie in memory to their file, while the model answers. It packs nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from mmap import mmap

from stoker.backends.native.packed_file import PackedStore, Sink

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 20
_FINISH_S = 20.0
"""Maximum time that closing waits for the file: a short run is not to leave the packing to every next one."""


class Writing:
    """A thread that writes one packed file. The owner of the weights closes it.

    Args:
        store: where the file goes.
        name: of the file, see `packed_file.fingerprint`.
        memory: the packed weights; they stay as they are.
        finish_s: maximum time in seconds that `close` waits for a file under way.
    """

    def __init__(self, store: PackedStore, name: str, memory: mmap, finish_s: float = _FINISH_S) -> None:
        self._store, self._name, self._memory = store, name, memory
        self._finish_s = finish_s
        self._gave_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stoker-packed-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits until the file is there, but not for long; what is not finished by then is removed."""
        self._thread.join(self._finish_s)
        self._gave_up.set()
        self._thread.join(self._finish_s)

    def _run(self) -> None:
        try:
            self._store.open(self._name, len(self._memory), self._fill)
        except _Abandoned:
            logger.info("the packed weights were not written in time, and will be packed again next time")

    def _fill(self, sink: Sink) -> None:
        copy_packed(self._memory, sink, self._check)

    def _check(self) -> None:
        if self._gave_up.is_set():
            raise _Abandoned


class _Abandoned(Exception):
    """The weights are closed before their file is written."""


def copy_packed(source: mmap, sink: Sink, check: Callable[[], None] | None = None) -> None:
    """Writes all packed bytes to `sink`, piece by piece; before each piece `check` may raise what ends the copy."""
    with memoryview(source) as data:
        for start in range(0, len(data), _PIECE_BYTES):
            if check is not None:
                check()
            with data[start : start + _PIECE_BYTES] as piece:
                sink.write(start, piece)
