"""Tracks which whole blocks of KV an engine holds, as changes from one look to the next. It sends nothing.

```
    look 1   pool a b c              ──► everything         a caller that has the result of the last look
    look 2   pool a b     memory c   ──► pool -c, memory +c gets the changes, any other caller gets everything
```

It costs nothing between two looks: a look compares the slots of the pool with the result of the previous look.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from stoker.core.blocks import BLOCK_ENTRIES, Chain, root_key
from stoker.core.kv_cache import KVCache
from stoker.core.sequence import CacheKey
from stoker.engine.blocks_held import MEMORY, POOL, RemovedBlocks, StoredBlocks, block_number
from stoker.engine.question_messages import BlocksHeld, LookAtBlocks

MemoryKeys: TypeAlias = Callable[[int], tuple[int, set[bytes] | None]]
"""See `KVStore.memory_keys`."""
BlocksT = TypeVar("BlocksT", StoredBlocks, RemovedBlocks)


class BlockLedger:
    """The blocks of one engine, as of the last look. Belongs to the thread that steps.

    Args:
        kv: the KV pool. Only this object may take the cuts of its tree.
        memory_keys: returns the blocks in the RAM tier.
    """

    def __init__(self, kv: KVCache, memory_keys: MemoryKeys) -> None:
        self._kv = kv
        self._memory_keys = memory_keys
        self._name = secrets.token_hex(4)
        self._serial = 0
        self._chains: dict[int, Chain] = {}
        """Blocks of each slot that any request may reuse, as of the last look."""
        self._num_slots: dict[bytes, int] = {}
        """Number of slots that hold a block, by its key."""
        self._in_memory: set[bytes] = set()
        self._num_memory_changes = -1

    def look(self, question: LookAtBlocks) -> BlocksHeld:
        """The changes since the last look if the caller has its result, or else all blocks."""
        is_known = (question.ledger, question.since) == (self._name, self._serial)
        stored, removed = self._look_at_pool(wants_tokens=question.wants_tokens)
        come, gone = self._look_at_memory()
        stored += _in_memory(StoredBlocks, come)
        removed += _in_memory(RemovedBlocks, gone)
        self._serial += bool(stored or removed)
        if not is_known:
            stored, removed = self._everything(wants_tokens=question.wants_tokens), []
        return BlocksHeld(question.question_id, self._name, self._serial, not is_known, stored, removed)

    def _look_at_pool(self, *, wants_tokens: bool) -> tuple[list[StoredBlocks], list[RemovedBlocks]]:
        before: dict[bytes, bool] = {}
        """For each block that a slot has gained or lost: whether any slot held it at the last look."""
        tree = self._kv.tree
        for slot, length in tree.take_cuts().items():
            self._cut(slot, length // BLOCK_ENTRIES, before)
        grown = [(slot, self._grow(slot, before)) for slot in tree.slots if self._has_grown(slot)]
        stored = {key for key, was_held in before.items() if not was_held and key in self._num_slots}
        gone = [block_number(key) for key, was_held in before.items() if was_held and key not in self._num_slots]
        runs = [run for slot, first in grown for run in self._runs(slot, first, stored, wants_tokens=wants_tokens)]
        return runs, [RemovedBlocks(POOL, gone)] if gone else []

    def _look_at_memory(self) -> tuple[set[bytes], set[bytes]]:
        self._num_memory_changes, keys = self._memory_keys(self._num_memory_changes)
        if keys is None:
            return set(), set()
        known, self._in_memory = self._in_memory, keys
        return keys - known, known - keys

    def _everything(self, *, wants_tokens: bool) -> list[StoredBlocks]:
        left = set(self._num_slots)
        runs = [run for slot in self._chains for run in self._runs(slot, 0, left, wants_tokens=wants_tokens)]
        return runs + _in_memory(StoredBlocks, self._in_memory)

    def _has_grown(self, slot: int) -> bool:
        key = self._kv.key_of(slot)
        assert isinstance(key, CacheKey), "all is computed or adopted under one"
        if key.owner is not None:
            return False
        if slot not in self._chains:
            self._chains[slot] = Chain(root_key(key.adapters))
        return len(self._chains[slot].keys) < self._kv.tree.length(slot) // BLOCK_ENTRIES

    def _grow(self, slot: int, before: dict[bytes, bool]) -> int:
        """Adds new blocks of a slot to its chain. Returns the number of blocks that the chain had before."""
        chain = self._chains[slot]
        known = len(chain.keys)
        chain.extend(self._kv.tree.entries(slot))
        for key in chain.keys[known:]:
            before.setdefault(key, key in self._num_slots)
            self._num_slots[key] = self._num_slots.get(key, 0) + 1
        return known

    def _cut(self, slot: int, num_blocks: int, before: dict[bytes, bool]) -> None:
        chain = self._chains.get(slot)
        if chain is None:
            return
        for key in chain.keys[num_blocks:]:
            before.setdefault(key, True)
            self._num_slots[key] -= 1
            if not self._num_slots[key]:
                del self._num_slots[key]
        del chain.keys[num_blocks:]
        if not num_blocks:
            del self._chains[slot]  # the slot's next content may be computed with other adapters

    def _runs(self, slot: int, first: int, wanted: set[bytes], *, wants_tokens: bool) -> Iterator[StoredBlocks]:
        """Consecutive blocks of a slot that are in `wanted`, from block `first` on. Removes them from `wanted`."""
        keys = self._chains[slot].keys
        entries = self._kv.tree.entries(slot) if wants_tokens else []
        for start, end in _stretches([key in wanted for key in keys[first:]]):
            run = slice(first + start, first + end)
            wanted.difference_update(keys[run])
            yield StoredBlocks(
                POOL,
                [block_number(key) for key in keys[run]],
                block_number(keys[run.start - 1]) if run.start else None,
                entries[run.start * BLOCK_ENTRIES : run.stop * BLOCK_ENTRIES],
                self._lora_id(slot),
            )

    def _lora_id(self, slot: int) -> int | None:
        key = self._kv.key_of(slot)
        assert isinstance(key, CacheKey)
        return block_number(root_key(key.adapters)) if key.adapters else None


def _in_memory(kind: Callable[[str, list[int]], BlocksT], keys: set[bytes]) -> list[BlocksT]:
    return [kind(MEMORY, [block_number(key) for key in keys])] if keys else []


def _stretches(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """
    >>> list(_stretches([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    start: int | None = None
    for index, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = index
        elif not flag and start is not None:
            yield start, index
            start = None
