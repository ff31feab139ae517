"""The KV cache as the scheduler sees it: which slots are running or retained, and what they hold.

It never touches memory: every change to a slot is queued as a `CacheOp` for the next batch, in order.

```
    capacity = [ held by running slots | held by retained slots only | promised to this step | free ]
                 never evicted           evicted in the order of       becomes held on commit
                                         `Retained`, tail by tail      (`Ledger`)
```

Where only whole slots can be copied (`CacheTraits.copies_whole`), a running sequence leaves *checkpoints*: retained
slots that share its entries up to a length at which later prompts may diverge from it.

```
    checkpoint ─────┤
    checkpoint ─────────────────┤                 a prompt that parts here ┐ goes on from the second checkpoint,
    running    ─────────────────────────────────┤ ◄────────────────────────┘ and computes the rest again
```
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass

from stoker.core.batch import CacheOp, CopyPrefix, Entry, Truncate
from stoker.core.ledger import Ledger
from stoker.core.model_info import ModelInfo
from stoker.core.prefix_tree import Match, PrefixTree
from stoker.core.retained import Retained
from stoker.core.window_cells import WindowCells

TRIM_GRANULE = 64
"""Retained tails are cut in steps of this many cells, so that a full pool does not cost one operation per token."""
MIN_USE = 32
"""Copying fewer entries than this from a retained slot does not postpone its eviction: most prompts begin alike."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """The cached prefix that a new sequence can use: `length` entries of slot `source` (None = nothing to reuse)."""

    source: int | None
    length: int
    takes_over: bool
    """The sequence continues in the retained slot `source` itself, instead of in a copy of it."""
    match: Match | None
    num_restorable: int = 0
    """Length of the prefix after a restoration from the tiers (RAM, disk); 0 = they hold no more than the pool does."""

    @property
    def goal(self) -> int:
        """Number of entries that need not be computed."""
        return max(self.length, self.num_restorable)


NOTHING = Reuse(None, 0, takes_over=False, match=None)


class KVCache:
    """Hands out the slots of one backend and evicts retained KV to make room. A slot is free, running or retained."""

    def __init__(self, info: ModelInfo) -> None:
        self.tree = PrefixTree()
        windows = None if info.windows is None else WindowCells(info.windows, self.tree)
        self.ledger = Ledger(info.least_kv_tokens, self.tree, shares_cells=info.traits.shares_cells, windows=windows)
        self.retained = Retained()
        self._share = info.kv_tokens
        self._traits = info.traits
        self._max_batch_tokens = info.max_batch_tokens
        self._free_slots = list(reversed(range(info.num_slots)))
        self._running: dict[int, Hashable] = {}
        """The running slots, each with the cache key under which its entries can be matched."""
        self._ops: list[CacheOp] = []
        self.num_evicted = 0
        """Cells of retained slots that were evicted since the start."""
        self.num_evicted_slots = 0
        """Retained slots that were evicted entirely since the start."""

    @property
    def held_by_retained(self) -> int:
        """Cells that only retained slots hold."""
        return self.ledger.held - self._held_by_running()

    @property
    def num_sequences(self) -> int:
        """Number of running and retained slots."""
        return len(self._running) + len(self.retained)

    @property
    def is_half_full(self) -> bool:
        """At least half of the cells or of the slots are in use, so that evictions may begin soon."""
        num_free_slots, windows = len(self._free_slots), self.ledger.windows
        are_windows_half_full = windows is not None and windows.is_half_full
        is_pool_half_full = self.ledger.free * 2 <= self.ledger.capacity
        return is_pool_half_full or are_windows_half_full or num_free_slots <= self.num_sequences

    @property
    def lends(self) -> bool:
        """The pool lends cells to other models now, so that a request that fits into its share may not fit."""
        return self.ledger.capacity < self._share

    @property
    def can_copy(self) -> bool:
        return self._traits.can_copy

    @property
    def copies_whole(self) -> bool:
        return self._traits.copies_whole

    @property
    def can_truncate(self) -> bool:
        """A slot can be cut back, so that a part of what it holds can be reused; otherwise all of it or nothing."""
        return self._traits.can_truncate

    @property
    def running_slots(self) -> Set[int]:
        return self._running.keys()

    def find_reuse(self, entries: list[Entry], limit: int, key: Hashable = None) -> Reuse:
        """The prefix of `entries[:limit]` that is resident under the cache key and that the backend can reuse."""
        if not self._traits.can_copy:
            return self._find_retained(entries, limit, key)
        if self._traits.copies_whole:
            return self._find_whole(entries, limit, key)
        match = self.tree.match(entries[:limit], key)
        through = self.tree.slots_through(match)
        if not through:
            return NOTHING
        source = min(through, key=lambda slot: (slot not in self.retained, slot))
        is_whole = self.tree.length(source) == match.length
        if source not in self.retained:
            return Reuse(source, match.length, takes_over=False, match=match) if self._can_copy(match) else NOTHING
        if is_whole or not (self._can_copy(match) and self._num_spare_slots > 1):
            can_go_on = is_whole or self._traits.can_truncate
            return Reuse(source, match.length, takes_over=True, match=match) if can_go_on else NOTHING
        return Reuse(source, match.length, takes_over=False, match=match)

    def parting(self, entries: list[Entry], key: Hashable) -> int:
        """Length of the longest resident prefix of `entries` under a cache key, even if the backend cannot reuse it."""
        return self.tree.match(entries, key).length

    def room_beside(self, reuse: Reuse) -> int:
        """Cells that a new sequence could get if all retained KV were evicted except what the sequence reuses."""
        if reuse.match is not None and self._traits.shares_cells:
            kept = self.tree.num_held_by(self._running.keys(), reuse.match)
        else:
            kept = self._held_by_running() + reuse.length
        return self.ledger.capacity - self.ledger.num_promised - kept

    def has_slot(self, reuse: Reuse) -> bool:
        # A copy needs its retained source to stay until the copy is made, so that slot cannot be the new one.
        is_pinned = reuse.source in self.retained and not reuse.takes_over
        return self._num_spare_slots > int(is_pinned)

    def open(self, reuse: Reuse, key: Hashable = None) -> int:
        """Returns a slot, from now on running under `key`, with `reuse.length` reused entries. Requires `has_slot`."""
        if reuse.takes_over:
            assert reuse.source is not None
            slot = reuse.source
            self._running[slot] = self.retained.remove(slot)
            self._cut(slot, reuse.length)
            return slot
        slot = self._take_slot(pinned=reuse.source)
        self._running[slot] = key
        self.tree.insert(slot, key)
        if reuse.source is not None:
            if reuse.length >= MIN_USE:
                self.retained.use(reuse.source)
                self._use_checkpoints_of(reuse.source)
            self._copy(reuse.source, slot, reuse.length)
        return slot

    def leave_checkpoint(self, slot: int) -> None:
        """Copies a running slot into a retained one for later sequences, if a slot is spare and none ends there yet."""
        is_kept = any(other in self.retained for other in self.tree.tips_beside(slot))
        if is_kept or self._num_spare_slots == 0:
            return
        kept, key = self._take_slot(pinned=None), self._running[slot]
        self.tree.insert(kept, key)
        self._copy(slot, kept, self.tree.length(slot))
        self.retained.add(kept, key, is_checkpoint=True)

    def make_room(self, num_cells: int) -> int:
        """Evicts ends of retained slots until `num_cells` cells are free or none is retained; returns the free cells.

        It also frees cells of the window pool. Running sequences alone never fill that pool, see `Scheduler`.
        """
        before, num_windowed = self.ledger.free, min(num_cells, self._most_windowed)
        while not (self.ledger.free >= num_cells and self.ledger.has_room(num_windowed)) and self.retained:
            self._trim(self.retained.first(), num_cells - self.ledger.free)
        free = self.ledger.free
        self.num_evicted += free - before
        return free

    def limit(self, num_cells: int) -> bool:
        """Sets the capacity of the pool, in cells, and evicts ends of retained slots that do not fit any more.

        Returns:
            Whether the rest fits. False: running sequences hold more.
        """
        self.ledger.capacity = num_cells
        return self.make_room(0) >= 0

    def reject(self, slot: int, length: int) -> None:
        """Discards rejected draft entries of this step: the slot keeps nothing beyond its first `length` entries."""
        self.ledger.withdraw(slot, length)
        self._ops.append(Truncate(slot, length))

    def shorten(self, slot: int, length: int) -> None:
        """Cuts a running slot back to its first `length` entries."""
        assert slot in self._running
        self._cut(slot, length)

    def close(self, slot: int, *, retain: bool, session: str = "") -> None:
        """Takes a running slot from its sequence, and retains or clears its content.

        Args:
            slot: the running slot.
            retain: keep the content for later sequences until it is evicted, if it can be of use to them.
            session: the session to which the content belongs, see `Retained.add`.
        """
        assert not self.ledger.is_promised(slot)
        key = self._running.pop(slot)
        if retain and self._is_worth_keeping(slot):
            self.retained.add(slot, key, session)
            self._use_checkpoints_of(slot)
        else:
            self._clear(slot)

    def lengths(self) -> dict[int, int]:
        """Number of entries in each slot; 0 for free slots."""
        held = {slot: self.tree.length(slot) for slot in self.tree.slots}
        return dict.fromkeys(sorted(self._free_slots), 0) | held

    def erase(self, slot: int) -> int:
        """Clears a retained slot; returns the number of entries that it held, 0 if the slot is not retained."""
        if slot not in self.retained:
            return 0
        length = self.tree.length(slot)
        self._drop(slot)
        return length

    def session_length(self, session: str) -> int:
        """Number of resident entries that a session left; 0 while a request of the session runs in the slot."""
        slot = self.retained.slot_of(session)
        return 0 if slot is None else self.tree.length(slot)

    def release_session(self, session: str) -> None:
        """See `Retained.release`."""
        self.retained.release(session)

    def erase_session(self, session: str) -> None:
        """Clears the retained slot of a session, if there is one."""
        slot = self.retained.slot_of(session)
        if slot is not None:
            self._drop(slot)

    def left_in(self, slot: int) -> tuple[list[Entry], Hashable]:
        """The entries and the cache key of a retained slot; `[]` and None if the slot is not retained."""
        if slot not in self.retained:
            return [], None
        return self.tree.entries(slot), self.retained.key(slot)

    def adopt(self, slot: int, entries: Sequence[Entry], key: Hashable = None) -> None:
        """Registers entries whose KV was put into an empty slot from outside, as if a conversation had left them."""
        assert len(entries) <= self.ledger.free
        self._free_slots.remove(slot)
        self.tree.insert(slot, key)
        self.tree.extend(slot, entries)
        self.retained.add(slot, key)
        if self.ledger.windows is not None:
            self.ledger.windows.add(min(len(entries), self.ledger.windows.reach))

    def key_of(self, slot: int) -> Hashable:
        """The cache key of a running or retained slot."""
        return self._running[slot] if slot in self._running else self.retained.key(slot)

    def forget(self, key: Hashable) -> None:
        """Clears all retained slots of a cache key."""
        for slot in self.retained.under(key):
            self._drop(slot)

    def take_ops(self) -> tuple[CacheOp, ...]:
        ops, self._ops = tuple(self._ops), []
        return ops

    def repeat_ops(self, ops: Sequence[CacheOp]) -> set[int]:
        """Brings slots into a known state after a failed step, whichever of its operations the backend has applied.

        Truncations are queued again, and targets of copies are emptied. Returns these targets: the caller preempts
        their sequences. Checkpoints among them are dropped instead.
        """
        shortened: dict[int, int] = {}
        filled: set[int] = set()
        for op in ops:
            if isinstance(op, CopyPrefix):
                shortened[op.target] = 0
                filled.add(op.target)
            else:
                shortened[op.slot] = min(op.length, shortened.get(op.slot, op.length))
        self._ops[:0] = [Truncate(slot, length) for slot, length in shortened.items()]
        given_up = {slot for slot in filled if self.retained.is_checkpoint(slot)}
        for slot in given_up:
            self._drop(slot)
        assert not filled & self.retained.slots, "a slot was filled and given up in one step"
        return filled - given_up

    def check_integrity(self) -> None:
        """Asserts that slots and cells add up."""
        self.tree.check_integrity()
        self.ledger.check_integrity()
        assert not self._running.keys() & self.retained.slots
        assert set(self.tree.slots) == self._running.keys() | self.retained.slots
        assert not set(self._free_slots) & set(self.tree.slots)
        assert len(set(self._free_slots)) == len(self._free_slots)
        if self._traits.shares_cells and not self._traits.copies_whole:
            assert all(self.tree.num_private(slot) > 0 for slot in self.retained), "a slot retained for nothing"

    @property
    def _num_spare_slots(self) -> int:
        return len(self._free_slots) + len(self.retained)

    def _held_by_running(self) -> int:
        if self._traits.shares_cells:
            return self.tree.num_held_by(self._running.keys())
        return sum(self.tree.length(slot) for slot in self._running)

    @property
    def _most_windowed(self) -> int:
        """Maximum number of window cells that a sequence can be promised in one step."""
        windows = self.ledger.windows
        return 0 if windows is None else max(self._max_batch_tokens, windows.reach)

    def _is_worth_keeping(self, slot: int) -> bool:
        """Whether the content of a slot may serve later sequences. If other slots hold all of it, retaining it only
        wastes a slot, except where sequences can continue only at the end of a slot (`copies_whole`).
        """
        if self._traits.copies_whole:
            return self.tree.length(slot) > 0 and not any(s in self.retained for s in self.tree.tips_beside(slot))
        return (self.tree.num_private(slot) if self._traits.shares_cells else self.tree.length(slot)) > 0

    def _use_checkpoints_of(self, slot: int) -> None:
        """Marks checkpoints as used: a conversation is evicted before its checkpoints, longer checkpoints first."""
        if self._traits.copies_whole:
            for node in self.tree.path(slot):
                for checkpoint in [tip for tip in node.tips if self.retained.is_checkpoint(tip)]:
                    self.retained.use(checkpoint)

    def _copy(self, source: int, target: int, length: int) -> None:
        self.tree.copy(source, target, length)
        self._ops.append(CopyPrefix(source, target, length))

    def _can_copy(self, match: Match) -> bool:
        return self._traits.shares_cells or self.ledger.free >= match.length

    def _take_slot(self, pinned: int | None) -> int:
        if not self._free_slots:
            self._evict(self.retained.first(pinned))
        return self._free_slots.pop()

    def _cut(self, slot: int, length: int) -> None:
        if length < self.tree.length(slot):
            self.tree.truncate(slot, length)
            self._ops.append(Truncate(slot, length))

    def _trim(self, slot: int, num_cells: int) -> None:
        """Frees about `num_cells` from the tail of a retained slot; the whole slot if it cannot be cut."""
        private = self.tree.num_private(slot) if self._traits.shares_cells else self.tree.length(slot)
        wanted = -(-num_cells // TRIM_GRANULE) * TRIM_GRANULE
        if self._traits.can_truncate and wanted < private:
            self._cut(slot, self.tree.length(slot) - wanted)
        else:
            self._evict(slot)

    def _evict(self, slot: int) -> None:
        self.num_evicted_slots += 1
        self._drop(slot)

    def _drop(self, slot: int) -> None:
        self.retained.remove(slot)
        self._clear(slot)

    def _clear(self, slot: int) -> None:
        self._ops.append(Truncate(slot, 0))
        self.tree.remove(slot)
        self._free_slots.append(slot)

    def _find_retained(self, entries: list[Entry], limit: int, key: Hashable) -> Reuse:
        """For backends that cannot copy: takes over the retained slot with the longest usable prefix."""
        best, wanted = NOTHING, entries[:limit]
        for slot in self.retained.under(key):
            length = self.tree.overlap(slot, wanted)
            is_usable = length == self.tree.length(slot) or self._traits.can_truncate
            if is_usable and length > best.length:
                best = Reuse(slot, length, takes_over=True, match=None)
        return best

    def _find_whole(self, entries: list[Entry], limit: int, key: Hashable) -> Reuse:
        """For backends that copy only whole slots: the longest prefix at which some slot ends.

        The slot of a finished conversation is taken over; a checkpoint (unless no other slot is spare) or running slot
        is copied.
        """
        match = self.tree.match_end(entries[:limit], key)
        if match.length == 0:
            return NOTHING
        tips = match.node.tips
        left = next((slot for slot in tips if slot in self.retained and not self.retained.is_checkpoint(slot)), None)
        source = min(tips, key=lambda slot: (slot not in self.retained, slot)) if left is None else left
        is_last_slot = source in self.retained and self._num_spare_slots == 1
        return Reuse(source, match.length, takes_over=source == left or is_last_slot, match=match)
