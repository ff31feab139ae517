"""Retained slots (the prefix cache that finished conversations leave) and their order of eviction. It frees no cell.

To evict in another order, write a class with the methods of `EvictionRule` and let `Retained` create it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Protocol


class EvictionRule(Protocol):
    """Puts retained slots into the order in which they are evicted."""

    def add(self, slot: int) -> None:
        """A slot is retained from now on."""
        ...

    def use(self, slot: int) -> None:
        """A running sequence copies entries from a retained slot."""
        ...

    def remove(self, slot: int) -> None:
        """A slot is not retained any more: a sequence took it over, or it was cleared."""
        ...

    def __iter__(self) -> Iterator[int]:
        """All retained slots; the first is evicted first."""
        ...


class LeastRecentlyUsed:
    """The eviction rule (LRU): evicts first the slot that was left, or copied from, longest ago."""

    def __init__(self) -> None:
        self._slots: dict[int, None] = {}

    def add(self, slot: int) -> None:
        """The slot becomes the last to be evicted."""
        self._slots[slot] = None

    def use(self, slot: int) -> None:
        """The slot becomes the last to be evicted."""
        del self._slots[slot]
        self._slots[slot] = None

    def remove(self, slot: int) -> None:
        del self._slots[slot]

    def __iter__(self) -> Iterator[int]:
        return iter(self._slots)


class Retained:
    """The retained slots of one `KVCache`, each with its cache key. Iterates in order of eviction.

    The latest slot of each session is evicted after all other slots, until the session is released.
    """

    def __init__(self) -> None:
        self._keys: dict[int, Hashable] = {}
        self._rule: EvictionRule = LeastRecentlyUsed()
        self._preferred: EvictionRule = LeastRecentlyUsed()
        """The slots of sessions."""
        self._sessions: dict[str, int] = {}
        self._session_of: dict[int, str] = {}
        self._checkpoints: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, slot: object) -> bool:
        return slot in self._keys

    def __iter__(self) -> Iterator[int]:
        return chain(self._rule, self._preferred)

    def add(self, slot: int, key: Hashable, session: str = "", *, is_checkpoint: bool = False) -> None:
        """Adds the slot of a conversation that has finished or was restored from a file.

        Args:
            slot: the slot with the entries.
            key: their cache key.
            session: the session to which the slot belongs, in place of the session's former slot. Empty = none.
            is_checkpoint: the conversation continues in another slot; see `KVCache.leave_checkpoint`.
        """
        self._keys[slot] = key
        if is_checkpoint:
            self._checkpoints.add(slot)
        if not session:
            self._rule.add(slot)
            return
        self.release(session)
        self._sessions[session], self._session_of[slot] = slot, session
        self._preferred.add(slot)

    def use(self, slot: int | None) -> None:
        """Notes that a new sequence copies entries from a slot. Slots that are not retained are ignored."""
        if slot in self._keys:
            self._rule_of(slot).use(slot)

    def remove(self, slot: int) -> Hashable:
        """Removes a slot that is not retained any more; returns its cache key."""
        self._rule_of(slot).remove(slot)
        self._checkpoints.discard(slot)
        session = self._session_of.pop(slot, None)
        if session is not None:
            del self._sessions[session]
        return self._keys.pop(slot)

    def release(self, session: str) -> None:
        """Ends the preference of a session: its slot is evicted like all others from now on."""
        slot = self._sessions.pop(session, None)
        if slot is not None:
            del self._session_of[slot]
            self._preferred.remove(slot)
            self._rule.add(slot)

    def slot_of(self, session: str) -> int | None:
        """The retained slot of a session; None = there is none, or a request runs in it."""
        return self._sessions.get(session)

    def is_checkpoint(self, slot: int) -> bool:
        """The slot is retained, and its entries were copied from a sequence that continued in another slot."""
        return slot in self._checkpoints

    def key(self, slot: int) -> Hashable:
        return self._keys[slot]

    def under(self, key: Hashable) -> list[int]:
        """The retained slots with this cache key, in order of eviction."""
        return [slot for slot in self if self._keys[slot] == key]

    def first(self, pinned: int | None = None) -> int:
        """The slot to evict first. Requires at least one slot besides `pinned`.

        Args:
            pinned: a slot that must not be evicted now.
        """
        return next(slot for slot in self if slot != pinned)

    @property
    def slots(self) -> set[int]:
        """All retained slots."""
        return set(self._keys)

    def _rule_of(self, slot: int) -> EvictionRule:
        return self._preferred if slot in self._session_of else self._rule
