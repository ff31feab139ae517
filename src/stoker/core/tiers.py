"""The scheduler's interface to the tiers (RAM, disk) that keep KV outside the backend. It sees keys, but no KV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

KVBytes: TypeAlias = bytes | memoryview
"""Exported KV: immutable, and opaque to all parts except the backend that made it."""

TakeMemory: TypeAlias = Callable[[int], memoryview]
"""Returns the given number of writable bytes with arbitrary content."""


def new_memory(num_bytes: int) -> memoryview:
    """Fresh memory that is referenced nowhere else, see `TakeMemory`."""
    return memoryview(bytearray(num_bytes))


class Tiers(Protocol):
    """Blocks of exported KV by key, in RAM and on disk. No method waits."""

    @property
    def is_durable(self) -> bool:
        """Exported KV survives the end of the process, so that it is worth exporting everything soon."""
        ...

    def holds(self, key: bytes) -> bool:
        """The block is in RAM or on disk, and need not be exported again."""
        ...

    def is_ready(self, key: bytes) -> bool:
        """The block is in RAM, and can be imported into a slot now."""
        ...

    def read_s(self, keys: Sequence[bytes]) -> float:
        """Estimated time to read these blocks from disk into RAM, in seconds; 0 = not known yet."""
        ...

    def fetch(self, keys: Sequence[bytes]) -> None:
        """Starts reading into RAM those of these blocks that are on disk."""
        ...

    def is_coming(self, keys: Iterable[bytes]) -> bool:
        """Some of these blocks are being read into RAM. Becomes false with the last one, or when reading takes long."""
        ...

    def touch(self, keys: Iterable[bytes]) -> None:
        """Marks the blocks as just used: they are evicted last."""
        ...
