"""The slots of the KV pool: which run, which are retained, what they hold. It never touches memory.

```
    capacity = [ held by running slots | held by retained slots only | promised to this step | free ]
                 never evicted           evicted in the order of       becomes held on commit
                                         `Retained`, tail by tail      (`Ledger`)
```

Whatever is done to a slot is queued as a `CacheOp` for the next batch, in order.

Where only whole slots can be copied, a running sequence leaves *checkpoints*: retained slots that share its entries up
to a length at which later prompts may part from it.

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
"""A retained slot from which fewer entries are copied is no less likely to be evicted: every prompt begins like it."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """How an admission would use what is resident: `length` entries from `source` (None: nothing to reuse)."""

    source: int | None
    length: int
    takes_over: bool
    """The retained slot `source` itself goes on, instead of a copy."""
    match: Match | None
    num_restorable: int = 0
    """How long the prefix becomes with what the tiers have of it; 0 = they have no more than is resident."""

    @property
    def goal(self) -> int:
        """Entries that need not be computed."""
        return max(self.length, self.num_restorable)


NOTHING = Reuse(None, 0, takes_over=False, match=None)


class KVCache:
    """Hands out slots, and makes room for them. A slot is free, or it runs, or it is retained."""

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
        """The slots with a sequence, each with the key under which its entries are found."""
        self._ops: list[CacheOp] = []
        self.num_evicted = 0
        """Cells of finished conversations that had to make room, since the start."""
        self.num_evicted_slots = 0
        """Finished conversations of which nothing is left for that reason."""

    @property
    def held_by_retained(self) -> int:
        """Cells that no running slot holds."""
        return self.ledger.held - self._held_by_running()

    @property
    def num_sequences(self) -> int:
        """Slots that hold something, or are about to."""
        return len(self._running) + len(self.retained)

    @property
    def is_half_full(self) -> bool:
        """Half of the cells or of the slots are in use: before long something has to leave."""
        num_free_slots, windows = len(self._free_slots), self.ledger.windows
        are_windows_half_full = windows is not None and windows.is_half_full
        is_pool_half_full = self.ledger.free * 2 <= self.ledger.capacity
        return is_pool_half_full or are_windows_half_full or num_free_slots <= self.num_sequences

    @property
    def lends(self) -> bool:
        """Other models have cells of the pool's share now: what fits into the share need not fit."""
        return self.ledger.capacity < self._share

    @property
    def can_copy(self) -> bool:
        return self._traits.can_copy

    @property
    def copies_whole(self) -> bool:
        return self._traits.copies_whole

    @property
    def can_truncate(self) -> bool:
        """A part of what a slot holds can be reused; else it is all or nothing."""
        return self._traits.can_truncate

    @property
    def running_slots(self) -> Set[int]:
        return self._running.keys()

    def find_reuse(self, entries: list[Entry], limit: int, key: Hashable = None) -> Reuse:
        """What of `entries[:limit]` is resident under `key` and can be had by this backend."""
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
        """How many of `entries` are resident under `key`, whether a backend can have them or not."""
        return self.tree.match(entries, key).length

    def room_beside(self, reuse: Reuse) -> int:
        """Cells that a new sequence could still get, were everything retained evicted but what it reuses."""
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
        """Gives out a slot that holds `reuse.length` entries under `key`. Needs `has_slot`."""
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
        """Keeps what a running slot holds now for later sequences, in a retained slot, if one can be had."""
        is_kept = any(other in self.retained for other in self.tree.tips_beside(slot))
        if is_kept or self._num_spare_slots == 0:
            return
        kept, key = self._take_slot(pinned=None), self._running[slot]
        self.tree.insert(kept, key)
        self._copy(slot, kept, self.tree.length(slot))
        self.retained.add(kept, key, is_checkpoint=True)

    def make_room(self, num_cells: int) -> int:
        """Evicts retained tails until `num_cells` are free, or nothing is left to evict; returns what is free.

        Cells of windows are made free likewise. Running sequences cannot use these up: see `Scheduler`.
        """
        before, num_windowed = self.ledger.free, min(num_cells, self._most_windowed)
        while not (self.ledger.free >= num_cells and self.ledger.has_room(num_windowed)) and self.retained:
            self._trim(self.retained.first(), num_cells - self.ledger.free)
        free = self.ledger.free
        self.num_evicted += free - before
        return free

    def limit(self, num_cells: int) -> bool:
        """The pool has so many cells from now on; retained tails are evicted as far as they do not fit.

        Returns:
            What is left fits. False: running sequences hold more.
        """
        self.ledger.capacity = num_cells
        return self.make_room(0) >= 0

    def reject(self, slot: int, length: int) -> None:
        """Of what this step computed in a slot, nothing beyond `length` entries is kept: it was guessed wrongly."""
        self.ledger.withdraw(slot, length)
        self._ops.append(Truncate(slot, length))

    def shorten(self, slot: int, length: int) -> None:
        """A running slot keeps its first `length` entries."""
        assert slot in self._running
        self._cut(slot, length)

    def close(self, slot: int, *, retain: bool, session: str = "") -> None:
        """Takes a slot from its sequence; its content stays resident until evicted, or goes at once.

        Args:
            slot: in which a sequence runs.
            retain: its content stays.
            session: for which it stays, see `Retained.add`.
        """
        assert not self.ledger.is_promised(slot)
        key = self._running.pop(slot)
        if retain and self._is_worth_keeping(slot):
            self.retained.add(slot, key, session)
            self._use_checkpoints_of(slot)
        else:
            self._clear(slot)

    def lengths(self) -> dict[int, int]:
        """How many entries each slot holds, the free ones included."""
        held = {slot: self.tree.length(slot) for slot in self.tree.slots}
        return dict.fromkeys(sorted(self._free_slots), 0) | held

    def erase(self, slot: int) -> int:
        """Forgets what a retained slot holds; returns how many entries that was. A running slot is left alone."""
        if slot not in self.retained:
            return 0
        length = self.tree.length(slot)
        self._drop(slot)
        return length

    def session_length(self, session: str) -> int:
        """Entries that a session has left, and that are still there; 0 while it runs."""
        slot = self.retained.slot_of(session)
        return 0 if slot is None else self.tree.length(slot)

    def release_session(self, session: str) -> None:
        """See `Retained.release`."""
        self.retained.release(session)

    def erase_session(self, session: str) -> None:
        """Forgets what a session has left."""
        slot = self.retained.slot_of(session)
        if slot is not None:
            self._drop(slot)

    def left_in(self, slot: int) -> tuple[list[Entry], Hashable]:
        """What a retained slot holds, and under which key; nothing if it is none."""
        if slot not in self.retained:
            return [], None
        return self.tree.entries(slot), self.retained.key(slot)

    def adopt(self, slot: int, entries: Sequence[Entry], key: Hashable = None) -> None:
        """An empty slot was filled from outside: it holds these entries, as if a conversation had left them."""
        assert len(entries) <= self.ledger.free
        self._free_slots.remove(slot)
        self.tree.insert(slot, key)
        self.tree.extend(slot, entries)
        self.retained.add(slot, key)
        if self.ledger.windows is not None:
            self.ledger.windows.add(min(len(entries), self.ledger.windows.reach))

    def key_of(self, slot: int) -> Hashable:
        """Under which key the entries of a slot that is not free are found."""
        return self._running[slot] if slot in self._running else self.retained.key(slot)

    def forget(self, key: Hashable) -> None:
        """Drops whatever is retained under a key."""
        for slot in self.retained.under(key):
            self._drop(slot)

    def take_ops(self) -> tuple[CacheOp, ...]:
        ops, self._ops = tuple(self._ops), []
        return ops

    def repeat_ops(self, ops: Sequence[CacheOp]) -> set[int]:
        """Queues the operations of a failed step again, whether the backend had applied them or not.

        Only truncation is repeated. Returns the slots that copies should have filled; sequences there are preempted.
        Checkpoints that were to be filled are given up.
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
        """Cells of windows that one sequence can be promised in a step, at most."""
        windows = self.ledger.windows
        return 0 if windows is None else max(self._max_batch_tokens, windows.reach)

    def _is_worth_keeping(self, slot: int) -> bool:
        """What a sequence leaves in a slot could be of use. Where other slots hold all of it, it would only cost a
        slot, unless a later sequence can go on only where a slot ends.
        """
        if self._traits.copies_whole:
            return self.tree.length(slot) > 0 and not any(s in self.retained for s in self.tree.tips_beside(slot))
        return (self.tree.num_private(slot) if self._traits.shares_cells else self.tree.length(slot)) > 0

    def _use_checkpoints_of(self, slot: int) -> None:
        """A conversation is evicted before its checkpoints, and of these the longest first."""
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
        """Without copies only a retained slot itself can go on: the one with the longest usable prefix."""
        best, wanted = NOTHING, entries[:limit]
        for slot in self.retained.under(key):
            length = self.tree.overlap(slot, wanted)
            is_usable = length == self.tree.length(slot) or self._traits.can_truncate
            if is_usable and length > best.length:
                best = Reuse(slot, length, takes_over=True, match=None)
        return best

    def _find_whole(self, entries: list[Entry], limit: int, key: Hashable) -> Reuse:
        """Where only whole slots can be copied: the longest prefix at which some slot ends.

        What a finished conversation left is gone on with where it is; a checkpoint and a running sequence stay.
        """
        match = self.tree.match_end(entries[:limit], key)
        if match.length == 0:
            return NOTHING
        tips = match.node.tips
        left = next((slot for slot in tips if slot in self.retained and not self.retained.is_checkpoint(slot)), None)
        source = min(tips, key=lambda slot: (slot not in self.retained, slot)) if left is None else left
        is_last_slot = source in self.retained and self._num_spare_slots == 1
        return Reuse(source, match.length, takes_over=source == left or is_last_slot, match=match)
