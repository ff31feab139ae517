"""A fast path for series of decode steps: the same sequences take one entry each; none arrives, ends or lacks room.

```
    step      | prompts | decodes | decodes | decodes | … | decodes | a sequence has come, or has ended, …
    planned     anew      anew      again     again         again     anew
```

The result is what `StepPlanner` would plan (tests/properties/test_decode_runs.py), without the work. Most steps are
pure decode steps, and planning takes a good part of a step with a small model. Only these steps have drafts
(speculative decoding): steps with prompts, or that delay a waiting request, have enough to compute.
"""

from __future__ import annotations

from stoker.core.adapter_rotation import AdapterRotation
from stoker.core.batch import Batch, Chunk, Entry
from stoker.core.kv_cache import KVCache
from stoker.core.population import RANK, Population
from stoker.core.speculation import Speculation
from stoker.core.step_plan import StepPlan


class DecodeRun:
    """One series of decode steps. The scheduler creates it after a pure decode step and drops it at the first change.

    Args:
        kv: its ledger sets the cells of each step aside.
        rotation: notified of every step.
        speculation: drafts entries where that pays.
        population: no sequence waits, and each running one has one pending entry before every step.
    """

    __slots__ = (
        "_kv",
        "_lane",
        "_no_drafts",
        "_num_changes",
        "_num_drafted",
        "_num_steps",
        "_population",
        "_rotation",
        "_running",
        "_speculation",
        "batch",
        "sequences",
    )

    def __init__(
        self, kv: KVCache, rotation: AdapterRotation, speculation: Speculation, population: Population
    ) -> None:
        self._kv = kv
        self._rotation = rotation
        self._speculation = speculation
        self._population = population
        self._num_changes = population.num_changes
        self._running = running = sorted(population.running.items(), key=lambda item: RANK(item[1]))
        """The running sequences with their slots, in the order of their rank."""
        self._num_steps = 0
        """Number of steps planned so far."""
        self._num_drafted = [0] * len(running)
        """Number of drafted entries in these steps, for each sequence."""
        self._no_drafts: list[list[Entry]] = [[] for _ in running]
        self.sequences = [sequence for _, sequence in running]
        """The sequences in the order of their rows of logits."""
        self._lane = rotation.lane_of(self.sequences[0])
        self.batch: Batch | None = None
        """The step that was planned last."""

    @classmethod
    def after(
        cls, plan: StepPlan, kv: KVCache, rotation: AdapterRotation, speculation: Speculation, population: Population
    ) -> DecodeRun | None:
        """The run after a step; None = a sequence waits, or the step has other work than one decode per sequence."""
        if population.num_waiting or plan.imports:
            return None
        if not plan.num_decodes == len(plan.chunks) == population.num_running:
            return None
        return cls(kv, rotation, speculation, population)

    @property
    def has_room(self) -> bool:
        """Every sequence still runs, and has room for the next step; none has to be preempted."""
        is_unchanged = self._num_changes == self._population.num_changes
        return is_unchanged and self._kv.ledger.has_room(len(self.sequences))

    def plan(self, step_id: int) -> Batch:
        """Plans the next step and sets its cells aside. Requires `has_room`."""
        self._num_steps += 1
        self._rotation.take(self._lane)
        drafts = self._drafts()
        chunks = tuple(
            [
                Chunk(slot, s.num_computed, (s.entries[-1], *draft), 1 + len(draft), s.request.adapters, (), s.shift)
                for (slot, s), draft in zip(self._running, drafts, strict=True)
            ]
        )
        self._kv.ledger.promise_each(chunks)
        self.batch = Batch(step_id, chunks, self._kv.take_ops(), num_drafted=sum(map(len, drafts)))
        return self.batch

    def _drafts(self) -> list[list[Entry]]:
        """For each sequence the drafted entries that follow its last entry."""
        if (wanted := self._speculation.begin_step()) > 0:
            room = self._kv.make_room(len(self.sequences) + wanted)
            if (drafts := self._speculation.drafts(self.sequences, room)) is not None:
                self._num_drafted = [before + len(its) for before, its in zip(self._num_drafted, drafts, strict=True)]
                return drafts
        return self._no_drafts

    def end(self) -> None:
        """Ends the run: charges each client for the entries that were computed for it."""
        for sequence, num_drafted in zip(self.sequences, self._num_drafted, strict=True):
            self._population.charge(sequence.request.client_key, self._num_steps + num_drafted)
