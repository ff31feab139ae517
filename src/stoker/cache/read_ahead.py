"""What is to be read before anybody asks for it, and when. It knows no disk and no thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

_URGENT_BYTES = 64 * 2**20
"""So much is read ahead although somebody computes, …"""
_REST = 7.0
"""… with rests so many times as long as each reading kept a core: he needs it too."""


class ReadAhead:
    """Keys, the best first. Not safe to use from several threads."""

    def __init__(self) -> None:
        self._keys: deque[bytes] = deque()
        self._rests_until = 0.0
        self._num_urgent_bytes = _URGENT_BYTES

    def extend(self, keys: Iterable[bytes]) -> None:
        self._keys.extend(keys)

    def take(self) -> bytes:
        """The next one, of at least one."""
        return self._keys.popleft()

    def clear(self) -> None:
        self._keys.clear()

    def note(self, num_bytes: int, cpu_s: float, now: float) -> None:
        """So much was read, or nothing, and it took so much of a core."""
        self._num_urgent_bytes -= num_bytes
        self._rests_until = now + _REST * cpu_s

    @property
    def is_urgent(self) -> bool:
        """The next one may be read although somebody computes."""
        return bool(self._keys) and self._num_urgent_bytes > 0

    def at(self, quiet_from: float) -> float:
        """When the next one may be read; for ever, if there is none.

        Args:
            quiet_from: when nobody will compute any more, if nobody begins again.
        """
        if not self._keys:
            return inf
        return min(self._rests_until, quiet_from) if self._num_urgent_bytes > 0 else quiet_from
