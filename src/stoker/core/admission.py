"""Which waiting sequence gets a slot next, and with how much of its prompt already there."""

from __future__ import annotations

from collections.abc import Hashable

from stoker.core.kv_cache import KVCache, Reuse
from stoker.core.prefix_tree import common_prefix
from stoker.core.sequence import Sequence
from stoker.core.waiting import WaitingQueue

LOOKAHEAD = 8
"""Waiting sequences that are compared by what they could reuse."""
MAX_PASSED_OVER = 8
"""A sequence is passed over for better cached ones this often at most."""
MIN_SHARED = 32
"""Overtaking for a prefix, or waiting for one that is being computed, is worth it from this many entries."""
MAX_PREFIX_WAITS = 1000
"""Steps that a sequence waits for a prefix at most."""


class Admission:
    """Admits by fairness and reuse, and only what has room *now*: the rest of its prompt, not its worst case."""

    def __init__(self, kv: KVCache, waiting: WaitingQueue, running: dict[int, Sequence], max_running: int) -> None:
        self._kv = kv
        self._waiting = waiting
        self._running = running
        self._max_running = max_running
        self._is_blocked = False

    def reconsider(self) -> None:
        """Something left or arrived: what had no place may have one now."""
        self._is_blocked = False

    def has_place(self, sequence: Sequence) -> bool:
        return self._has_place(sequence, self._find_reuse(sequence))

    def admit_next(self) -> Sequence | None:
        """Starts the next waiting sequence if one has a place, and returns it."""
        if self._is_blocked or not self._waiting or len(self._running) >= self._max_running:
            return None
        choice = self._choose()
        if choice is None:
            return None
        sequence, reuse = choice
        if not self._has_place(sequence, reuse):
            # Running sequences only grow, so nothing can change this before somebody leaves.
            self._is_blocked = True
            return None
        self._start(sequence, reuse)
        return sequence

    def _start(self, sequence: Sequence, reuse: Reuse) -> None:
        self._waiting.remove(sequence)
        sequence.slot = self._kv.open(reuse, _cache_key(sequence))
        sequence.num_computed = reuse.length
        if not sequence.was_admitted:
            sequence.num_cached, sequence.was_admitted = reuse.length, True
        self._running[sequence.slot] = sequence

    def _has_place(self, sequence: Sequence, reuse: Reuse) -> bool:
        if len(self._running) >= self._max_running or not self._kv.has_slot(reuse):
            return False
        # One cell for each running sequence beside, or the first decode would preempt what was just admitted.
        num_needed = len(sequence.entries) - reuse.length + len(self._running)
        return self._kv.room_beside(reuse) >= num_needed

    def _choose(self) -> tuple[Sequence, Reuse] | None:
        """The fairest candidate, unless another can reuse more and the fairest was not passed over too often."""
        candidates = [(s, self._find_reuse(s)) for s in self._waiting.candidates(LOOKAHEAD)]
        candidates = [(s, reuse) for s, reuse in candidates if not self._awaits_prefix(s, reuse)]
        if not candidates:
            return None
        fairest = candidates[0]
        best = max(candidates, key=lambda candidate: candidate[1].length)
        gain = best[1].length - fairest[1].length
        if gain < MIN_SHARED or fairest[0].num_passed_over >= MAX_PASSED_OVER:
            return fairest
        fairest[0].num_passed_over += 1
        return best

    def _find_reuse(self, sequence: Sequence) -> Reuse:
        # The last entry is always computed again: its logits are where the answer begins.
        return self._kv.find_reuse(sequence.entries, len(sequence.entries) - 1, _cache_key(sequence))

    def _awaits_prefix(self, sequence: Sequence, reuse: Reuse) -> bool:
        """A running sequence is about to compute much of this one's prompt: better to take it from there."""
        if not self._kv.can_copy or sequence.num_prefix_waits >= MAX_PREFIX_WAITS:
            return False
        limit = len(sequence.entries) - 1
        for leader in self._running.values():
            if leader.num_pending <= 1 or _cache_key(leader) != _cache_key(sequence):
                continue
            shared = min(common_prefix(leader.entries, sequence.entries), limit)
            if shared - max(reuse.length, leader.num_computed) >= MIN_SHARED:
                sequence.num_prefix_waits += 1
                return True
        return False


def _cache_key(sequence: Sequence) -> Hashable:
    """Whose KV a sequence may read: everybody's, or with `cache_prompt=False` nobody's."""
    return None if sequence.request.cache_prompt else sequence.request.request_id
