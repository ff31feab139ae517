"""The RAM tier: blocks of exported KV by key, with a size limit and LRU eviction. It knows no disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.core.tiers import KVBytes


@dataclass(slots=True)
class _Held:
    state: KVBytes
    is_from_disk: bool


class HostTier:
    """The blocks in RAM of one `KVStore`, which locks it: the class itself is not thread-safe.

    Args:
        limit_bytes: maximum size of all blocks together. A larger block is not stored.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.num_changes = 0
        """Number of times that a block was added or removed."""
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        """Blocks by key, least recently used first."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def put(self, key: bytes, state: KVBytes, *, is_from_disk: bool = False) -> list[bytes]:
        """Stores a block; returns the keys of the blocks that were evicted for it."""
        self.discard(key)
        if len(state) > self.limit_bytes:
            return []
        self._held[key] = _Held(state, is_from_disk)
        self.num_changes += 1
        self.num_bytes += len(state)
        evicted: list[bytes] = []
        while self.num_bytes > self.limit_bytes:
            evicted.append(oldest := next(iter(self._held)))
            self.discard(oldest)
        return evicted

    def put_last_in_line(self, key: bytes, state: KVBytes) -> bool:
        """Stores a block that was read ahead, before any request: it is evicted first, and evicts no other.

        Returns:
            False if there is no room.
        """
        if self.num_bytes + len(state) > self.limit_bytes:
            return False
        if key not in self._held:
            self.put(key, state, is_from_disk=True)
            self._held.move_to_end(key, last=False)
        return True

    def peek(self, key: bytes) -> KVBytes | None:
        """The block, or None; does not count as a use."""
        held = self._held.get(key)
        return None if held is None else held.state

    def take(self, key: bytes) -> tuple[KVBytes, bool] | None:
        """The block, and whether this is its first use since it was read from disk; None if it is not in RAM."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        is_from_disk, held.is_from_disk = held.is_from_disk, False
        return held.state, is_from_disk

    def keys(self) -> set[bytes]:
        """The keys of all blocks."""
        return set(self._held)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Marks these blocks as just used. Unknown keys are ignored."""
        for key in keys:
            if key in self._held:
                self._held.move_to_end(key)

    def clear(self) -> list[bytes]:
        """Removes all blocks; returns their keys."""
        keys = list(self._held)
        self.num_changes += 1
        self._held.clear()
        self.num_bytes = 0
        return keys

    def discard(self, key: bytes) -> None:
        """Removes a block, if it is in RAM."""
        held = self._held.pop(key, None)
        if held is not None:
            self.num_changes += 1
            self.num_bytes -= len(held.state)
