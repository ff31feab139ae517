"""Which blocks were used lately, and of which the folder is still to be told. It knows no folder and no thread."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import islice

FRESH_S = 60.0
"""So long a block counts as just used: a conversation that goes on is not noted with each of its turns."""
_TICK_S = 1e-6
"""What is used one after the other is told apart by this."""


class Uses:
    """Not safe to use from several threads. Bounded by what is in the folder."""

    def __init__(self) -> None:
        self._due: dict[bytes, float] = {}
        self._fresh: set[bytes] = set()
        self._fresh_until = 0.0

    def __bool__(self) -> bool:
        """The folder is still to be told of some."""
        return bool(self._due)

    def note(self, keys: Iterable[bytes], kept: Container[bytes], now: float, used_at: float) -> None:
        """Somebody uses these one after the other; those that are not kept in the folder do not matter.

        Args:
            now: on a clock of which only differences count.
            used_at: in seconds since 1970.
        """
        if now >= self._fresh_until:
            self._fresh.clear()
            self._fresh_until = now + FRESH_S
        used = [key for key in keys if key in kept and key not in self._fresh]
        self._fresh.update(used)
        self._due.update((key, used_at + index * _TICK_S) for index, key in enumerate(used))

    def note_written(self, key: bytes) -> None:
        """The folder itself has noted this one."""
        self._fresh.add(key)

    def take(self, count: int) -> list[tuple[bytes, float]]:
        """So many of which the folder shall be told now, with the times of their use, in that order."""
        taken = list(islice(self._due.items(), count))
        for key, _ in taken:
            del self._due[key]
        return taken
