"""Which blocks are to be read for somebody who waits, and for how long he does. It knows no disk and no thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Wanted:
    """Keys, the first one first. Not safe to use from several threads. Bounded by what is in the folder."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._last: set[bytes] = set()
        """Those of them that somebody wanted last: with these, all is there that he waits for."""

    def __bool__(self) -> bool:
        return bool(self._until)

    def add(self, keys: Sequence[bytes], until: float) -> None:
        """Somebody waits for all of these, but not for longer than that."""
        self._until.update(dict.fromkeys(keys, until))
        self._last.update(keys[-1:])

    def clear(self) -> None:
        self._until.clear()
        self._last.clear()

    @property
    def first(self) -> bytes:
        """Of at least one."""
        return next(iter(self._until))

    def is_late(self, key: bytes, now: float) -> bool:
        """Nobody waits for it any more."""
        return self._until.get(key, 0.0) <= now

    def is_any_coming(self, keys: Iterable[bytes], now: float) -> bool:
        """One of them is wanted, and there is still hope."""
        return any(not self.is_late(key, now) for key in keys)

    def discard(self, key: bytes) -> bool:
        """It has been read, or cannot be; returns whether somebody had wanted it last."""
        self._until.pop(key, None)
        is_last = key in self._last
        self._last.discard(key)
        return is_last
