"""Admission: decides which waiting sequence gets a slot next, and which cached prefix it reuses. It plans no step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from stoker.core.adapter_rotation import AdapterRotation
from stoker.core.kv_cache import NOTHING, KVCache, Reuse
from stoker.core.population import Population
from stoker.core.sequence import Sequence
from stoker.core.tiering import Tiering

LOOKAHEAD = 8
"""Number of waiting sequences whose cached prefixes are compared."""
MAX_PASSED_OVER = 8
"""Maximum number of times that a sequence is passed over for shorter or better cached ones."""
MIN_SHARED = 32
"""Minimum length of a cached prefix for overtaking, or of a prefix that is worth waiting for, in entries."""
MAX_PREFIX_WAITS = 1000
"""Maximum number of times that a sequence is postponed for a common prefix that is being computed."""

Candidate: TypeAlias = tuple[Sequence, Reuse]


class SlotAdmission:
    """Admits by fairness and prefix reuse, if there is room *now* for the rest of the prompt (not for the answer)."""

    def __init__(
        self,
        kv: KVCache,
        tiering: Tiering,
        population: Population,
        rotation: AdapterRotation,
        max_running: int,
    ) -> None:
        self._kv = kv
        self._tiering = tiering
        self._population = population
        self._rotation = rotation
        self._max_running = max_running
        self._blocked: tuple[Sequence, int] | None = None
        """The first waiting sequence, if it did not fit, and `Population.num_changes` at that time."""

    def lacks_place(self, sequence: Sequence) -> bool:
        """Whether only room keeps the sequence from running, not a disk read or a prefix that is being computed."""
        if self._tiering.is_coming(sequence):
            return False
        reuse = self._find_reuse(sequence)
        return not self._awaits_prefix(sequence, reuse) and not self._has_place(sequence, reuse)

    @property
    def can_admit(self) -> bool:
        """A sequence waits, and fewer than `max_running` sequences run."""
        return self._population.num_waiting > 0 and self._population.num_running < self._max_running

    def admit_next(self, prompts: Iterable[Sequence], budget: int) -> Sequence | None:
        """Starts the next waiting sequence that has room, and returns it.

        Args:
            prompts: the running sequences among which a step divides its prompt tokens.
            budget: those prompt tokens. A sequence that would get none of them is not admitted yet.
        """
        if not self.can_admit:
            return None
        line = self._population.candidates(LOOKAHEAD)
        if self._is_blocked(line[0]):
            return None
        # Checked before the reuse: KV that arrives from disk between the two checks must not be missed.
        there = [s for s in line if not self._tiering.is_coming(s)]
        candidates = [(s, self._find_reuse(s)) for s in there]
        ready = [(s, reuse) for s, reuse in candidates if not self._puts_off(s, reuse)]
        choice = self._choose(ready, prompts, budget)
        if choice is None:
            return None
        sequence, reuse = choice
        if not self._has_place(sequence, reuse):
            # Running sequences only grow, so the first in line cannot fit before one of them ends.
            self._blocked = (sequence, self._population.num_changes) if sequence is line[0] else None
            return None
        if sequence is not ready[0][0]:
            ready[0][0].num_passed_over += 1
        self._population.start(sequence, reuse)
        return sequence

    def _is_blocked(self, sequence: Sequence) -> bool:
        if self._blocked is None:
            return False
        blocked, num_changes = self._blocked
        return sequence is blocked and num_changes == self._population.num_changes

    def _has_place(self, sequence: Sequence, reuse: Reuse) -> bool:
        if self._population.num_running >= self._max_running or not self._kv.has_slot(reuse):
            return False
        # Cells for the pending entries of running sequences stay reserved, or they would soon preempt this one.
        num_spoken_for = sum(other.num_pending for other in self._population.running.values())
        return self._kv.room_beside(reuse) >= len(sequence.entries) - reuse.length + num_spoken_for

    def _choose(self, ready: list[Candidate], prompts: Iterable[Sequence], budget: int) -> Candidate | None:
        """The fairest candidate in the budget, or one that reuses `MIN_SHARED` more entries (see `MAX_PASSED_OVER`)."""
        if not ready or ready[0][0].num_passed_over >= MAX_PASSED_OVER:
            return ready[0] if ready else None
        served = [candidate for candidate in ready if self._is_reached(*candidate, prompts, budget)]
        if not served:
            return None
        best = max(served, key=lambda candidate: candidate[1].length)
        gain = best[1].length - served[0][1].length
        return best if gain >= MIN_SHARED and self._has_place(*best) else served[0]

    def _find_reuse(self, sequence: Sequence) -> Reuse:
        # The last entry is always computed again: its logits give the first token of the answer.
        limit = len(sequence.entries) - 1
        if sequence.request.scores_prompt and sequence.num_scored < sequence.num_prompt:
            limit = min(limit, sequence.num_scored)
        if limit == 0:
            return NOTHING
        reuse = self._kv.find_reuse(sequence.entries, limit, sequence.cache_key)
        num_restorable = self._tiering.restorable(sequence, reuse.length, limit)
        if num_restorable == 0:
            return reuse
        # A restoration begins at the start of a portion.
        resident = self._tiering.start_of(reuse.length)
        front = self._kv.find_reuse(sequence.entries, resident, sequence.cache_key) if resident else NOTHING
        return replace(front, num_restorable=num_restorable) if front.length == resident else reuse

    def _awaits_prefix(self, sequence: Sequence, reuse: Reuse) -> bool:
        """Whether a running sequence will soon have computed a long common prefix, which this one can then reuse."""
        if not self._kv.can_copy or sequence.request.scores_prompt or sequence.num_prefix_waits >= MAX_PREFIX_WAITS:
            return False
        return any(
            leader.num_pending > 1
            # No sequence waits for one that is served later.
            and leader.request.priority >= sequence.request.priority
            and leader.cache_key == sequence.cache_key
            and self._can_give(leader, sequence, max(reuse.length, leader.num_computed) + _min_shared(leader, sequence))
            for leader in self._population.running.values()
        )

    def _can_give(self, leader: Sequence, sequence: Sequence, least: int) -> bool:
        """Whether `sequence` will be able to copy a prefix of at least `least` entries from the running `leader`."""
        if not self._kv.copies_whole:
            return _share(leader, sequence, least)
        return any(length >= least and _share(leader, sequence, length) for length in leader.checkpoints)

    def _puts_off(self, sequence: Sequence, reuse: Reuse) -> bool:
        is_put_off = self._awaits_prefix(sequence, reuse)
        sequence.num_prefix_waits += is_put_off
        return is_put_off

    def _is_reached(self, sequence: Sequence, reuse: Reuse, prompts: Iterable[Sequence], budget: int) -> bool:
        """Whether the prompt budget leaves tokens for this sequence after higher priorities and shorter prompts."""
        turn = (-sequence.request.priority, len(sequence.entries) - reuse.goal)
        beside = self._rotation.of(self._rotation.lane_of(sequence), prompts)
        return sum(p.num_uncached for p in beside if (-p.request.priority, p.num_uncached) <= turn) < budget


def _min_shared(leader: Sequence, sequence: Sequence) -> int:
    """Within a group (several answers to one prompt), every common entry counts: the prompt is computed only once."""
    group = sequence.request.group
    return 1 if group and group == leader.request.group else MIN_SHARED


def _share(leader: Sequence, sequence: Sequence, length: int) -> bool:
    """Whether the first `length` entries of both sequences are equal, and `sequence` has more."""
    if length >= len(sequence.entries):
        return False
    # The last few first: they tell prompts apart that only begin alike.
    last = slice(max(0, length - MIN_SHARED), length)
    return leader.entries[last] == sequence.entries[last] and leader.entries[:length] == sequence.entries[:length]
