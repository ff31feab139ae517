"""A least-recently-used cache of bytes with a maximum total size."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")


class Kept(Generic[KeyT]):
    """An LRU cache of bytes by key. Not thread-safe: it belongs to one thread, or its owner guards it with a lock.

    Args:
        max_bytes: maximum total size of all values. A larger value is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[KeyT, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: KeyT) -> bytes | None:
        """The value, which becomes the most recently used one; None = the cache has no value for this key."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: KeyT, value: bytes) -> None:
        """Stores a value, and evicts others until the total size is within the limit."""
        self.num_bytes += len(value) - len(self._values.pop(key, b""))
        self._values[key] = value
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= len(self._values.popitem(last=False)[1])
