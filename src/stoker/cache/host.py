"""The tier in RAM: blocks by key, within a number of bytes, least recently used first to leave. It knows no disk."""

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
    """Not safe to use from several threads; its owner has a lock.

    Args:
        limit_bytes: what all blocks together may take. A block larger than that is not taken.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.num_changes = 0
        """How often a block came or left."""
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        """Blocks by key, least recently used first."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def put(self, key: bytes, state: KVBytes, *, is_from_disk: bool = False) -> list[bytes]:
        """Takes a block; returns the keys of those that have left for it."""
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
        """Takes a block from disk that no request has asked for: it is evicted first, and evicts no other.

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
        """The block, or None; it counts as no use."""
        held = self._held.get(key)
        return None if held is None else held.state

    def take(self, key: bytes) -> tuple[KVBytes, bool] | None:
        """The block, and whether this is the first use since it was read from disk; None if it is not here."""
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
        """Counts as a use of each. Keys that are not here are ignored."""
        for key in keys:
            if key in self._held:
                self._held.move_to_end(key)

    def clear(self) -> list[bytes]:
        """Forgets every block; returns their keys."""
        keys = list(self._held)
        self.num_changes += 1
        self._held.clear()
        self.num_bytes = 0
        return keys

    def discard(self, key: bytes) -> None:
        """Forgets a block, if it is here."""
        held = self._held.pop(key, None)
        if held is not None:
            self.num_changes += 1
            self.num_bytes -= len(held.state)
