"""Caches the results of decoding untrusted files, and the reasons for refusals. It runs no decoder itself."""

from __future__ import annotations

import logging
import signal
import threading
from functools import cache
from typing import Generic, TypeVar

from stoker.errors import BackendError
from stoker.media.confined import FileRefused
from stoker.media.kept import Kept

DONE, REFUSED = b"+", b"-"
"""First byte of a decoder's answer: a result or the reason of a refusal follows."""
ONLY_LIMITED = b"!"
"""Precedes an answer if the program could not filter its system calls (seccomp)."""
_MAX_REASON_BYTES = 1 << 20

logger = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")


class Verdicts(Generic[KeyT]):
    """Results and refusals of files by key, with an LRU cache for each. Safe to use from several threads.

    Args:
        max_kept_bytes: maximum size of cached results.
    """

    def __init__(self, max_kept_bytes: int) -> None:
        self._lock = threading.Lock()
        self._kept = Kept[KeyT](max_kept_bytes)
        self._refused = Kept[KeyT](_MAX_REASON_BYTES)
        self.num_decoded = 0

    def known(self, key: KeyT) -> bytes | None:
        """The cached result for a file; None = the file was not decoded before, or its result was evicted.

        Raises:
            FileRefused: the file was refused before.
        """
        with self._lock:
            if (reason := self._refused.get(key)) is not None:
                raise FileRefused(reason.decode())
            return self._kept.get(key)

    def take(self, key: KeyT, answer: bytes, code: int) -> bytes:
        """Caches and returns the result for a file.

        Args:
            key: identifies the file and the parameters of decoding.
            answer: output of the decoder.
            code: exit code of the decoder; negative = the number of the signal that ended it.

        Raises:
            FileRefused: the decoder refused the file, or crashed. The refusal is cached.
            BackendError: the decoder was killed from outside, which is no evidence against the file.
        """
        if code == -signal.SIGKILL:
            raise BackendError("the process that decodes a file was ended from outside; the machine may lack memory")
        if answer.startswith(ONLY_LIMITED):
            _warn_once()
            answer = answer[1:]
        reason = _reason(answer, code)
        with self._lock:
            if reason:
                self._refused.put(key, reason.encode())
                raise FileRefused(reason)
            self.num_decoded += 1
            self._kept.put(key, answer[1:])
        return answer[1:]


def _reason(answer: bytes, code: int) -> str:
    """The reason why a file is refused; empty = the file is accepted."""
    if code == -signal.SIGXCPU:
        return "takes too much computing time to decode"
    if code != 0 or answer[:1] not in (DONE, REFUSED):
        return "ends the process that decodes it: it is damaged, or takes too much memory"
    return "" if answer[:1] == DONE else answer[1:].decode("utf-8", "replace")


@cache
def _warn_once() -> None:
    logger.warning(
        "processes that decode files of clients are confined by limits only: "
        "this system lets no process give up system calls (seccomp)"
    )
