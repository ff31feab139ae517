"""What became of files that a program decoded: results that are kept, and reasons for refusals. It runs no program."""

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
"""The first byte of an answer."""
ONLY_LIMITED = b"!"
"""Stands before an answer if the program could make no system calls fail."""
_MAX_REASON_BYTES = 1 << 20

logger = logging.getLogger(__name__)

KeyT = TypeVar("KeyT")


class Verdicts(Generic[KeyT]):
    """Safe to use from several threads.

    Args:
        max_kept_bytes: of results.
    """

    def __init__(self, max_kept_bytes: int) -> None:
        self._lock = threading.Lock()
        self._kept = Kept[KeyT](max_kept_bytes)
        self._refused = Kept[KeyT](_MAX_REASON_BYTES)
        self.num_decoded = 0

    def known(self, key: KeyT) -> bytes | None:
        """The result for a file; None = it was not decoded, or is not kept.

        Raises:
            FileRefused: it was refused before.
        """
        with self._lock:
            if (reason := self._refused.get(key)) is not None:
                raise FileRefused(reason.decode())
            return self._kept.get(key)

    def take(self, key: KeyT, answer: bytes, code: int) -> bytes:
        """The result for a file, by what the program wrote and how it ended.

        Raises:
            FileRefused: it is refused, or ended the program. From now on it is refused at once.
            BackendError: the program was ended from outside, which tells nothing about the file.
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
    """Why a file is refused; empty = it is not."""
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
