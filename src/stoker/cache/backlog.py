"""What waits to be written, and until when it may. It knows no disk and no thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from math import inf

_TOGETHER_S = 0.25
"""What comes within so long is due at one time: writing one block soon after another costs less."""


class Backlog:
    """Keys with sizes, oldest first. Not safe to use from several threads.

    Args:
        max_s: so long something may wait for a moment in which nobody computes.
        max_bytes: so much may. Of more, the oldest have to be written at once.
    """

    def __init__(self, max_s: float, max_bytes: int) -> None:
        self._max_s = max_s
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._waiting: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """With the time until which each may wait, and its size."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting

    def add(self, key: bytes, num_bytes: int, now: float) -> None:
        """Comes last, unless it waits already."""
        if key not in self._waiting:
            self._waiting[key] = now // _TOGETHER_S * _TOGETHER_S + self._max_s, num_bytes
            self._num_bytes += num_bytes

    def discard(self, key: bytes) -> bool:
        """Does not wait any more; returns whether it did."""
        _, num_bytes = self._waiting.pop(key, (0.0, -1))
        self._num_bytes -= max(0, num_bytes)
        return num_bytes >= 0

    def discard_all(self, keys: Container[bytes]) -> None:
        """As `discard`, for those of them that wait."""
        for key in [key for key in self._waiting if key in keys]:
            self.discard(key)

    def clear(self) -> None:
        self._waiting.clear()
        self._num_bytes = 0

    @property
    def oldest(self) -> bytes:
        """Of at least one."""
        return next(iter(self._waiting))

    @property
    def due_at(self) -> float:
        """When the oldest has to be written, whoever computes; for ever, if there is none."""
        if not self._waiting:
            return inf
        return -inf if self._num_bytes > self._max_bytes else self._waiting[self.oldest][0]
