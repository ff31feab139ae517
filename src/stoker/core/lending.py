"""The size of a KV pool that lends memory to pools of other models, and borrows theirs. It does not know those pools.

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
    """Changes the number of cells of one scheduler's pool. Used between steps only.

    Args:
        info: sizes of the backend.
        kv: the KV cache whose capacity changes.
        population: the sequences that hold cells or need them.
        step_ids: gives the id of a batch that computes nothing.
        max_running: maximum number of running sequences.
    """

    def __init__(
        self, info: ModelInfo, kv: KVCache, population: Population, step_ids: Iterator[int], max_running: int
    ) -> None:
        self.share, self.least, self.most = info.kv_tokens, info.least_kv_tokens, info.most_kv_tokens
        """Size of the pool in cells: if nothing is lent or borrowed; the minimum; the maximum."""
        self.bytes_per_cell = info.kv_bytes_per_token
        self._kv = kv
        self._population = population
        self._step_ids = step_ids
        self._max_running = max_running
        self._seen = 0
        """Number of evicted cells and preemptions at the last call of `take_shortage` or `set_limit`."""

    @property
    def held(self) -> int:
        """Cells of running and retained slots."""
        return self._kv.ledger.used

    @property
    def limit(self) -> int:
        return self._kv.ledger.capacity

    @property
    def needed(self) -> int:
        """Cells that running sequences, and waiting ones that may run at the same time, need once their prompts are
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
        """Whether KV was evicted or a sequence preempted for lack of cells since the last call."""
        before, self._seen = self._seen, self._kv.num_evicted + self._population.num_preemptions
        return self._seen > before

    def set_limit(self, num_cells: int) -> Batch | None:
        """Sets the number of cells of the pool, within `least … most`.

        Retained KV that does not fit is evicted; if that is not enough, sequences are preempted, as in any full pool.

        Returns:
            A batch that computes nothing, and removes the evicted KV from the backend; None = nothing was evicted.
        """
        has_room = self._kv.limit(max(self.least, min(num_cells, self.most)))
        while not has_room:
            victim = self._population.lowest()
            assert victim is not None, "only what runs and what is retained holds cells"
            self._population.preempt(victim)
            has_room = self._kv.limit(self.limit)
        self._population.num_changes += 1  # the first waiting sequence may fit now
        self.take_shortage()
        ops = self._kv.take_ops()
        return Batch(next(self._step_ids), (), ops) if ops else None
