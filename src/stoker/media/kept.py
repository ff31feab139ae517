"""Bytes that are kept by key within a bound, least recently used first to go."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")


class Kept(Generic[KeyT]):
    """Belongs to one thread, or is guarded by a lock.

    Args:
        max_bytes: of all values. A larger value is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[KeyT, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: KeyT) -> bytes | None:
        """The value, which is the most recently used one from now on; None = there is none."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: KeyT, value: bytes) -> None:
        """Keeps a value, and drops as many others as it takes."""
        self.num_bytes += len(value) - len(self._values.pop(key, b""))
        self._values[key] = value
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= len(self._values.popitem(last=False)[1])
