"""Records an engine's steps and moments while a client watches. It belongs to the thread that steps.

```
    first Look ──► the engine creates a recorder ──► steps, moments ──► the next Look gets the records since the last
                                                                        no Look for 5 s: the recorder is dropped
```
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import TypeVar

from stoker.core.batch import Batch
from stoker.core.pool import pool_view
from stoker.core.scheduler import Scheduler
from stoker.core.stages import Mark, Stage
from stoker.engine.stats import EngineStats
from stoker.engine.view import EngineView, Moment, StepRecord

IDLE_S = 5.0
"""Seconds without a `Look` after which a recorder is dropped."""
_MAX_STEPS, _MAX_MOMENTS = 512, 512

RecordT = TypeVar("RecordT", StepRecord, Moment)


class Recorder:
    """The latest steps and moments of one engine, bounded in number: the oldest records are dropped.

    Args:
        scheduler: the engine's scheduler.
        clock: seconds; only differences count.
        mark: the engine's own mark, which every stage is passed on to.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], mark: Mark) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._outer = mark
        self._serial = 0
        self._steps: deque[StepRecord] = deque(maxlen=_MAX_STEPS)
        self._moments: deque[Moment] = deque(maxlen=_MAX_MOMENTS)
        self._looked_at = clock()
        self._name = secrets.token_hex(4)
        self._forward_ended = self._sample_ended = 0.0
        self._num_evicted = scheduler.kv.num_evicted
        self._num_preemptions = scheduler.num_preemptions

    def mark(self, stage: Stage) -> None:
        """See `Mark`."""
        if stage == "forward":
            self._forward_ended = self._clock()
        elif stage == "sample":
            self._sample_ended = self._clock()
        self._outer(stage)

    def stepped(self, batch: Batch, num_accepted: int, step_s: float, plan_s: float) -> bool:
        """Records a computed step. Its time is that of the forward pass and the sampling after it.

        Returns:
            False = no client has sent a `Look` for `IDLE_S`, so the recorder can be dropped.
        """
        now = self._clock()
        sample_s = self._sample_ended - self._forward_ended
        num_chunks, num_prompt, _ = batch.prompt_sizes()
        self._serial += 1
        record = StepRecord(
            serial=self._serial,
            at_s=now,
            step_ms=round(step_s * 1e3, 3),
            forward_ms=round((step_s - sample_s) * 1e3, 3),
            sample_ms=round(sample_s * 1e3, 3),
            num_decodes=len(batch.chunks) - num_chunks,
            num_prompt=num_prompt,
            num_drafted=batch.num_drafted,
            num_accepted=num_accepted,
            num_imported=sum(transfer.num_entries for transfer in batch.imports),
            members=[(chunk.slot, len(chunk.entries)) for chunk in batch.chunks],
            plan_ms=round(plan_s * 1e3, 3),
            step_id=batch.step_id,
        )
        self._steps.append(record)
        self._note_departures()
        return now - self._looked_at <= IDLE_S

    def note(self, kind: str, request_id: str, count: int = 0) -> None:
        """Records a moment. See `Moment`."""
        self._serial += 1
        self._moments.append(Moment(self._serial, self._clock(), kind, request_id, count))

    def view(self, stats: EngineStats, arrivals: dict[str, float], since: int) -> EngineView:
        """The current state of the engine, and all records with a serial above `since`.

        Args:
            stats: the engine's current statistics.
            arrivals: the arrival time of each live request, on the recorder's clock.
            since: serial of the newest record that the caller has; 0 or an impossible serial returns all records.
        """
        self._looked_at = now = self._clock()
        known = since if 0 <= since <= self._serial else 0
        return EngineView(
            recorder=self._name,
            now_s=now,
            serial=self._serial,
            steps=_newer(self._steps, known),
            moments=_newer(self._moments, known),
            sequences=self._scheduler.states(),
            arrivals=arrivals,
            pool=pool_view(self._scheduler.kv),
            stats=stats,
        )

    def _note_departures(self) -> None:
        num_evicted, num_preemptions = self._scheduler.kv.num_evicted, self._scheduler.num_preemptions
        if num_evicted > self._num_evicted:
            self.note("evicted", "", num_evicted - self._num_evicted)
            self._num_evicted = num_evicted
        if num_preemptions > self._num_preemptions:
            self.note("preempted", "", num_preemptions - self._num_preemptions)
            self._num_preemptions = num_preemptions


def _newer(records: deque[RecordT], serial: int) -> list[RecordT]:
    newest_first: Iterable[RecordT] = takewhile(lambda record: record.serial > serial, reversed(records))
    return list(newest_first)[::-1]
