"""The slots that finished conversations leave behind, and the rule by which they are evicted. It frees no cell.

To evict by another rule, write a class with the methods of `EvictionRule` and let `Retained` make it.
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
        """A slot is not retained any more: a sequence goes on in it, or it is empty."""
        ...

    def __iter__(self) -> Iterator[int]:
        """All retained slots; the first is evicted first."""
        ...


class LeastRecentlyUsed:
    """The eviction rule: the slot that was left, or copied from, longest ago is evicted first."""

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
    """Slots without a sequence, each with the key under which its entries are found. Iterates in order of eviction.

    What a session has left last is evicted after everything else, until the session is released.
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
        """A conversation is finished, or was restored from a file: its entries stay in the slot.

        Args:
            slot: where they are.
            key: under which they are found.
            session: to which they belong; what it left before is none of its any more. Empty = to none.
            is_checkpoint: the conversation goes on in another slot; see `KVCache.leave_checkpoint`.
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
        """A new sequence copies entries from a slot; one that is not retained is ignored."""
        if slot in self._keys:
            self._rule_of(slot).use(slot)

    def remove(self, slot: int) -> Hashable:
        """A slot is not retained any more; returns its key."""
        self._rule_of(slot).remove(slot)
        self._checkpoints.discard(slot)
        session = self._session_of.pop(slot, None)
        if session is not None:
            del self._sessions[session]
        return self._keys.pop(slot)

    def release(self, session: str) -> None:
        """What a session has left is evicted as everything else from now on."""
        slot = self._sessions.pop(session, None)
        if slot is not None:
            del self._session_of[slot]
            self._preferred.remove(slot)
            self._rule.add(slot)

    def slot_of(self, session: str) -> int | None:
        """Where what a session left lies; None = nowhere, or in a slot that runs."""
        return self._sessions.get(session)

    def is_checkpoint(self, slot: int) -> bool:
        """The slot is retained, and its entries were copied from a sequence that went on."""
        return slot in self._checkpoints

    def key(self, slot: int) -> Hashable:
        return self._keys[slot]

    def under(self, key: Hashable) -> list[int]:
        """The slots whose entries are found under a key, in order of eviction."""
        return [slot for slot in self if self._keys[slot] == key]

    def first(self, pinned: int | None = None) -> int:
        """The slot that is evicted first, of at least one.

        Args:
            pinned: a slot that must stay.
        """
        return next(slot for slot in self if slot != pinned)

    @property
    def slots(self) -> set[int]:
        """All retained slots."""
        return set(self._keys)

    def _rule_of(self, slot: int) -> EvictionRule:
        return self._preferred if slot in self._session_of else self._rule
