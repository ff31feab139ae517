"""Owns every sequence from arrival to end, and knows which ones run, wait or are paused. It plans no step.

```
    add ──► waiting ──start──► running ──end──► ended, until the next step is planned
               ▲ ▲ │              │ │
               │ │ └──pause──┐    │ │
               │ └──preempt──┼────┘ │          Of the parts of the scheduler, only this one opens and closes slots
               │             ▼      │          of the KV cache: a slot is open exactly while its sequence runs.
               └──resume── paused ◄─┘ pause
```
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType

from stoker.core.checkpoints import with_parting
from stoker.core.kv_cache import KVCache, Reuse
from stoker.core.sequence import FinishReason, Sequence
from stoker.core.tiering import Tiering
from stoker.core.waiting import WaitingQueue

RANK: Callable[[Sequence], tuple[int, int]] = attrgetter("rank")
"""The key that sorts sequences by rank: higher priority first, then older."""


class Population:
    """All sequences of one scheduler. Other parts of the scheduler read them here, and move them by these methods only.

    Args:
        kv: the KV cache whose slots are opened and closed.
        tiering: notified when a sequence leaves its entries in a slot.
    """

    def __init__(self, kv: KVCache, tiering: Tiering) -> None:
        self._kv = kv
        self._tiering = tiering
        self._waiting = WaitingQueue()
        self._running: dict[int, Sequence] = {}
        self._alive: dict[str, Sequence] = {}
        self._paused: dict[str, Sequence] = {}
        self._ended: dict[str, Sequence] = {}
        self.running: Mapping[int, Sequence] = MappingProxyType(self._running)
        """The sequences that run, by slot. Read-only."""
        self.candidates = self._waiting.candidates
        self.charge = self._waiting.charge
        self.num_changes = 0
        """Number of arrivals and departures. A sequence that does not fit cannot fit before this number changes."""
        self.num_preemptions = 0
        """Number of preemptions since the start: running sequences that went back to the queue to free KV cells."""

    @property
    def has_work(self) -> bool:
        """A sequence is alive and not paused."""
        return len(self._alive) > len(self._paused)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_paused(self) -> int:
        return len(self._paused)

    @property
    def waiting(self) -> Iterable[Sequence]:
        """The sequences that wait, in no particular order."""
        return self._waiting

    @property
    def paused(self) -> Iterable[Sequence]:
        """The paused sequences, whose clients read too slowly."""
        return self._paused.values()

    def find(self, request_id: str) -> Sequence | None:
        """A sequence that is alive; None = no such sequence."""
        return self._alive.get(request_id)

    def ended(self, request_id: str) -> Sequence:
        """A sequence that ended since `forget_ended`."""
        return self._ended[request_id]

    def forget_ended(self) -> None:
        """Forgets the sequences that ended; called before a step is planned."""
        self._ended.clear()

    @property
    def first_in_line(self) -> Sequence | None:
        """The waiting sequence whose turn is next; None = no sequence waits."""
        return self.candidates(1)[0] if self._waiting else None

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence. No live sequence may have the same request id."""
        self._alive[sequence.request.request_id] = sequence
        self._waiting.push(sequence)
        self.num_changes += 1

    def start(self, sequence: Sequence, reuse: Reuse) -> None:
        """Gives a waiting sequence a slot with the prefix that `reuse` describes. Requires `KVCache.has_slot`."""
        self._waiting.take(sequence)
        if self._kv.copies_whole and sequence.is_shared:
            parting = self._kv.parting(sequence.entries[:-1], sequence.cache_key)
            sequence.checkpoints = with_parting(sequence.checkpoints, parting, reuse.length)
        sequence.slot = self._kv.open(reuse, sequence.cache_key)
        sequence.num_computed, sequence.num_restorable = reuse.length, reuse.num_restorable
        if not sequence.has_begun:
            sequence.num_cached = sequence.num_resident = reuse.length
        self._running[sequence.slot] = sequence

    def lowest(self, spared: Container[int] = ()) -> Sequence | None:
        """The running sequence to preempt first: lowest priority, then newest.

        Args:
            spared: slots whose sequences are not preempted now.
        """
        return max((s for slot, s in self._running.items() if slot not in spared), key=RANK, default=None)

    def lowest_below(self, sequence: Sequence) -> Sequence | None:
        """The lowest running sequence, if it has a lower priority than `sequence`."""
        victim = self.lowest()
        return victim if victim is not None and victim.request.priority < sequence.request.priority else None

    def make_way(self, sequence: Sequence, spared: Container[int]) -> bool:
        """Preempts the lowest running sequence not in the slots `spared` if it ranks below `sequence`; False = none."""
        victim = self.lowest(spared)
        if victim is None or victim.rank <= sequence.rank:
            return False
        self.preempt(victim)
        return True

    def preempt(self, sequence: Sequence, *, retain: bool = True) -> None:
        """Moves a running sequence to the front of its client's queue. It keeps its tokens; its KV may be evicted."""
        self._vacate(sequence, retain=retain and sequence.is_shared)
        sequence.num_preempted += 1
        self.num_preemptions += 1
        self._waiting.push_front(sequence)

    def isolate(self, sequence: Sequence) -> None:
        """Moves a running sequence back to the queue, to be retried without KV of other sequences."""
        self._vacate(sequence, retain=False)
        sequence.is_isolated, sequence.has_begun, sequence.chain = True, False, None
        sequence.checkpoints = []
        self._waiting.push_front(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Takes a running or waiting sequence out until `resume`. Others may use its slot and evict its KV."""
        if sequence.slot is None:
            self._waiting.remove(sequence)
            self.num_changes += 1
        else:
            self._vacate(sequence, retain=not sequence.is_isolated)
        sequence.num_paused += 1
        self._paused[sequence.request.request_id] = sequence

    def is_paused(self, request_id: str) -> bool:
        return request_id in self._paused

    def resume(self, request_id: str) -> None:
        """Queues a paused sequence before all others of its client."""
        self._waiting.push_front(self._paused.pop(request_id))
        self.num_changes += 1

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a sequence that runs, waits or is paused."""
        request_id = sequence.request.request_id
        sequence.finish_reason = reason
        was_paused = self._paused.pop(request_id, None) is not None
        if sequence.slot is not None:
            # KV that led to an error is not retained: it may be the cause.
            self._vacate(sequence, retain=sequence.is_shared and reason is not FinishReason.ERROR)
        elif not was_paused:
            self._waiting.remove(sequence)
        if sequence.num_paused and not sequence.is_shared:
            self._kv.forget(sequence.cache_key)  # no other request may read it; a paused one that may computes it again
        del self._alive[request_id]
        self._ended[request_id] = sequence
        self._waiting.forget_idle({s.request.client_key for s in self._running.values()})

    def check_integrity(self) -> None:
        """Asserts that every sequence is in one place, and that slots agree with the sequences in them."""
        assert len(self._running) + len(self._waiting) + len(self._paused) == len(self._alive)
        assert self._kv.running_slots == self._running.keys()
        for slot, sequence in self._running.items():
            assert sequence.slot == slot
            assert self._kv.tree.entries(slot) == sequence.entries[: sequence.num_computed]
        for sequence in (*self._waiting, *self._paused.values()):
            assert sequence.slot is None
            assert sequence.num_computed == 0

    def _vacate(self, sequence: Sequence, *, retain: bool) -> None:
        assert sequence.slot is not None
        if retain:
            self._tiering.retain(sequence.slot, sequence)
        self._kv.close(sequence.slot, retain=retain, session=sequence.request.session)
        del self._running[sequence.slot]
        sequence.slot, sequence.num_computed, sequence.num_restorable = None, 0, 0
        self.num_changes += 1
