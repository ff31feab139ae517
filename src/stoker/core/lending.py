"""The size of a pool that lends cells to those of other models, and borrows theirs. It knows none of these.

```
    0         least            share (kv_tokens)                   most_kv_tokens
    [ kept ]    [ lent while others need it ] [ borrowed while others do not need it ]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.batch import Batch
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import ModelInfo
from stoker.core.population import RANK, Population


class Lending:
    """One per scheduler, between whose steps it is used.

    Args:
        info: of the backend.
        kv: of which the limit moves.
        population: sequences that hold cells or need them.
        step_ids: the ids of batches, for one that computes nothing.
        max_running: most sequences that run at the same time.
    """

    def __init__(
        self, info: ModelInfo, kv: KVCache, population: Population, step_ids: Iterator[int], max_running: int
    ) -> None:
        self.share, self.least, self.most = info.kv_tokens, info.least_kv_tokens, info.most_kv_tokens
        """Cells: what the pool has if nothing is lent, at least, and at most."""
        self.bytes_per_cell = info.kv_bytes_per_token
        self._kv = kv
        self._population = population
        self._step_ids = step_ids
        self._max_running = max_running
        self._seen = 0
        """Evicted cells and preemptions when `take_shortage` was last asked, or the limit was set."""

    @property
    def held(self) -> int:
        """Cells of running sequences and finished conversations."""
        return self._kv.ledger.used

    @property
    def limit(self) -> int:
        return self._kv.ledger.capacity

    @property
    def needed(self) -> int:
        """Cells that running sequences, and those that may run beside them, hold or will hold when their prompts are
        computed.
        """
        running = self._population.running.values()
        if not running and not self._population.num_waiting:
            return 0
        held = self._kv.ledger.used - self._kv.held_by_retained
        places = max(0, self._max_running - len(running))
        waiting = sorted(self._population.waiting, key=RANK)[:places]
        return held + sum(s.num_pending for s in running) + sum(len(s.entries) + 1 for s in waiting)

    def take_shortage(self) -> bool:
        """Something was evicted or preempted for want of cells since this was asked before."""
        before, self._seen = self._seen, self._kv.num_evicted + self._population.num_preemptions
        return self._seen > before

    def set_limit(self, num_cells: int) -> Batch | None:
        """The pool has so many cells from now on, as far as the backend can hold them.

        Retained prefixes that do not fit are evicted; then sequences are preempted, as always in a pool that is full.

        Returns:
            A batch that computes nothing, and takes from the backend what has left the pool; None = nothing has.
        """
        has_room = self._kv.limit(max(self.least, min(num_cells, self.most)))
        while not has_room:
            victim = self._population.lowest()
            assert victim is not None, "only what runs and what is retained holds cells"
            self._population.preempt(victim)
            has_room = self._kv.limit(self.limit)
        self._population.num_changes += 1  # the first in line may have room now
        self.take_shortage()
        ops = self._kv.take_ops()
        return Batch(next(self._step_ids), (), ops) if ops else None
