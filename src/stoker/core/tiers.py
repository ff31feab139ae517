"""What the core asks of the places where KV lives outside the backend; it never sees a byte of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

KVBytes: TypeAlias = bytes | memoryview
"""Exported KV: immutable, and opaque to all but the backend that made it."""

TakeMemory: TypeAlias = Callable[[int], memoryview]
"""Returns the given number of writable bytes with arbitrary content."""


def new_memory(num_bytes: int) -> memoryview:
    """Fresh memory that is referenced nowhere else, see `TakeMemory`."""
    return memoryview(bytearray(num_bytes))


class Tiers(Protocol):
    """Memory and disk behind the KV pool. No method waits for anything."""

    @property
    def is_durable(self) -> bool:
        """What they take outlives the process: it is worth giving them everything, at once."""
        ...

    def holds(self, key: bytes) -> bool:
        """It is in memory or on disk: giving it once more would be waste."""
        ...

    def is_ready(self, key: bytes) -> bool:
        """It is in memory, and can go into a slot now."""
        ...

    def read_s(self, keys: Sequence[bytes]) -> float:
        """About how long it would take to bring these from disk into memory; 0 = not known yet."""
        ...

    def fetch(self, keys: Sequence[bytes]) -> None:
        """Begins to bring into memory those that are on disk."""
        ...

    def is_coming(self, keys: Iterable[bytes]) -> bool:
        """Some of them are being brought into memory. Ends by itself: with the last of them, or when it takes long."""
        ...

    def touch(self, keys: Iterable[bytes]) -> None:
        """Marks the keys as just used: they are evicted last."""
        ...
