"""The slots that finished conversations leave behind, and the rule by which they are evicted. It frees no cell.

To evict by another rule, write a class with the methods of `EvictionRule` and let `Retained` make it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
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
    """Slots without a sequence, each with the key under which its entries are found. Iterates in order of eviction."""

    def __init__(self) -> None:
        self._keys: dict[int, Hashable] = {}
        self._rule: EvictionRule = LeastRecentlyUsed()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, slot: object) -> bool:
        return slot in self._keys

    def __iter__(self) -> Iterator[int]:
        return iter(self._rule)

    def add(self, slot: int, key: Hashable) -> None:
        """A conversation is finished, or was restored from a file: its entries stay in the slot."""
        self._keys[slot] = key
        self._rule.add(slot)

    def use(self, slot: int | None) -> None:
        """A new sequence copies entries from a slot; one that is not retained is ignored."""
        if slot in self._keys:
            self._rule.use(slot)

    def remove(self, slot: int) -> Hashable:
        """A slot is not retained any more; returns its key."""
        self._rule.remove(slot)
        return self._keys.pop(slot)

    def key(self, slot: int) -> Hashable:
        return self._keys[slot]

    def under(self, key: Hashable) -> list[int]:
        """The slots whose entries are found under a key, in order of eviction."""
        return [slot for slot in self._rule if self._keys[slot] == key]

    def first(self, pinned: int | None = None) -> int:
        """The slot that is evicted first, of at least one.

        Args:
            pinned: a slot that must stay.
        """
        return next(slot for slot in self._rule if slot != pinned)

    @property
    def slots(self) -> set[int]:
        """All retained slots."""
        return set(self._keys)
