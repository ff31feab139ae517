"""Decides which models are in memory: makes room, loads, swaps and unloads them. Knows no names and no requests.

```
             order, or a request                                   runtime started
(unloaded) ---------------------> measure ---> make room ---> load ----------------> loaded
     ^                             |            |              |  killed: tried again  |
     |  <- - - - an error - - - - -+- - - - - - + - - - - - - -+                       |
     |                                                                                 |
     +------ drain, close <--- asked, expired, evicted for another model --------------+
```

One task makes all decisions, one at a time. Whatever takes time runs as a job of its model; a model has at most one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from stoker.errors import ModelNotLoaded, ResourceExhausted, StokerError
from stoker.models.memory_plan import MemoryNeeds
from stoker.runtime.config import RegistryConfig
from stoker.runtime.entry import ModelEntry
from stoker.runtime.eviction import Candidate, choose_victims, has_had_enough, leaves_at
from stoker.runtime.instance import Instance
from stoker.runtime.kv_lending import KVLending
from stoker.runtime.memory_ledger import MemoryLedger
from stoker.runtime.model_events import ModelEvent, ModelEvents
from stoker.runtime.model_spec import ModelSpec
from stoker.runtime.served import ServedModel
from stoker.runtime.starting import started

logger = logging.getLogger(__name__)

_BUSY_RETRY_S = 10.0


class Residency:
    """Loads and unloads the models of one `Registry`, which owns it. Belongs to one event loop.

    Args:
        entries: returns all models that exist now.
        config: limits and times.
        available: returns the free memory of this machine, in bytes.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        entries: Callable[[], Iterable[ModelEntry]],
        config: RegistryConfig,
        available: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self.events = ModelEvents()
        self._entries = entries
        self._config = config
        self._clock = clock
        self._leaving = Leaving()
        self._ledger = MemoryLedger(entries, lambda: self._leaving.instances, config, available)
        self._lending = None if config.kv_budget is None else KVLending(self._instances, clock)
        self._changed = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the task that loads and unloads models. Call it once, before any model is loaded."""
        assert self._tending is None, "opened once"
        self._ledger.open()
        self._tending = asyncio.create_task(self._tend(), name="stoker-residency")
        self._tending.add_done_callback(self._note_end)
        if self._lending is not None:
            self._lending.open()

    def wake(self) -> None:
        """Wakes the deciding task: a request, a lease or a job has changed what it decides on."""
        self._changed.set()
        if self._lending is not None:
            self._lending.wake()

    async def load_first(self, entry: ModelEntry, *, must_fit: bool) -> bool:
        """Loads a model when the server starts, without unloading another one; returns whether it was loaded.

        Raises:
            StokerError: the model cannot be loaded; a lack of memory is an error only if `must_fit`.
        """
        await self._measure(entry)
        if entry.error is None:
            try:
                lack = self._ledger.lack(self._placed(entry, 0))
            except ResourceExhausted:
                if must_fit:
                    raise
                return False
            if lack and not must_fit:
                return False
            await asyncio.wait([self._begin_load(entry, ())])
        if entry.error is not None:
            raise entry.error
        return entry.instance is not None

    def unload(self, entry: ModelEntry, reason: str) -> None:
        """Unloads a model as soon as its requests have ended; cancels the load of a model that is not loaded yet.

        Raises:
            ModelNotLoaded: the model is being reloaded.
        """
        if entry.instance is None:
            if entry.job is not None:
                entry.job.cancel()
            entry.end_waiting(ModelNotLoaded(f"the model `{entry.model_id}` was unloaded while it was loaded"))
        elif entry.job is None:
            entry.is_draining = True
            self._start(entry, self._unload(entry, entry.instance, reason))
        elif not entry.is_draining:
            raise ModelNotLoaded(f"the model `{entry.model_id}` is being reloaded", retry_after_s=_BUSY_RETRY_S)

    def reload(self, entry: ModelEntry, spec: ModelSpec) -> asyncio.Task[None]:
        """Replaces a loaded model; running requests finish on the instance on which they began.

        If memory suffices for both, the new instance is loaded before the old one is unloaded, and there is no
        downtime. Else the old instance is unloaded first, and loaded again if the new one cannot be loaded.

        Returns:
            A task that ends when the reload has succeeded or failed; `entry.reload_error` then says why it failed.

        Raises:
            ModelNotLoaded: the model is being reloaded or unloaded already.
        """
        assert entry.instance is not None, "only a loaded model is reloaded"
        if entry.job is not None:
            raise ModelNotLoaded(
                f"the model `{entry.model_id}` is being loaded or unloaded already", retry_after_s=_BUSY_RETRY_S
            )
        entry.reload_error = None
        return self._start(entry, self._replace(entry, entry.instance, spec))

    async def close(self) -> None:
        """Cancels all jobs, ends waiting requests with an error and closes every model. Calling it twice is allowed."""
        tasks = [task for task in (self._tending, *(entry.job for entry in self._entries())) if task is not None]
        if self._lending is not None:
            await self._lending.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for entry in self._entries():
            entry.end_waiting(ModelNotLoaded("the server is stopping"))
            if entry.instance is not None:
                self._take_out(entry, entry.instance, "asked", drain_s=0.0)
        self.events.close()
        await self._leaving.close()

    # What to do

    async def _tend(self) -> None:
        while True:
            self._changed.clear()
            pause_s = self._step() - self._clock()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if pause_s == inf else max(0.0, pause_s)):
                    await self._changed.wait()

    def _step(self) -> float:
        """Begins every job that can begin now; returns the time of the next step if nothing wakes the task before."""
        entries = list(self._entries())
        for entry in entries:
            entry.yields = False
        looks = [self._expire(entry) for entry in entries]
        claimed: set[str] = set()
        wanted = (entry for entry in entries if entry.is_wanted and entry.job is None)
        looks += [self._make_room(entry, claimed) for entry in sorted(wanted, key=lambda entry: entry.wanted_at)]
        for entry in entries:
            if entry.takes_requests:
                entry.admit()
        return min(looks, default=inf)

    def _expire(self, entry: ModelEntry) -> float:
        instance = entry.instance
        if instance is None or entry.job is not None or entry.num_waiting or not instance.is_idle:
            return inf
        if entry.expires_at > self._clock():
            return entry.expires_at
        self.unload(entry, "expired")
        return inf

    def _make_room(self, entry: ModelEntry, claimed: set[str]) -> float:
        if not entry.is_measured:
            self._start(entry, self._measure(entry))
            return inf
        candidates = [_candidate(other, instance) for other, instance in self._evictable(claimed)]
        try:
            lack = self._ledger.lack(self._placed(entry, sum(candidate.device_bytes for candidate in candidates)))
        except ResourceExhausted as error:
            self._fail(entry, error)
            return inf
        if not lack:
            self._begin_load(entry, ())
            return inf
        victims = choose_victims(candidates, lack)
        if victims is not None:
            claimed.update(victim.key for victim in victims)
            return self._evict(entry, victims)
        if not claimed and not self._is_in_motion():
            self._fail(entry, self._ledger.no_room(entry))
        return inf

    def _placed(self, entry: ModelEntry, freed_bytes: int) -> MemoryNeeds | None:
        """The memory needs of a model with as many layers on GPUs as fit once `freed_bytes` become free there.

        Raises:
            ResourceExhausted: the configuration demands more layers on GPUs than fit.
        """
        needs, room = entry.needs, self._ledger.device_room()
        if needs is None or needs.devices is None:
            return needs
        return needs.placed(max(room, needs.devices.wanted(needs, room + freed_bytes)))

    def _evict(self, entry: ModelEntry, victims: Sequence[Candidate]) -> float:
        """Unloads the victims to make room for `entry`, or closes them to new requests; returns when to look again."""
        now, bounds = self._clock(), self._config.bounds
        by_id = {other.model_id: (other, instance) for other, instance in self._evictable(set())}
        leaving = [by_id[victim.key] for victim in victims]
        leave_at = now
        for victim, (other, instance) in zip(victims, leaving, strict=True):
            waiting = entry.waiting_for(instance)
            other.yields = has_had_enough(waiting, bounds, now)
            leave_at = max(leave_at, leaves_at(victim, waiting, bounds))
        if leave_at > now:
            return leave_at
        if all(victim.is_idle for victim in victims):
            self._begin_load(entry, leaving)
        return inf

    def _evictable(self, claimed: set[str]) -> list[tuple[ModelEntry, Instance]]:
        return [
            (entry, entry.instance)
            for entry in self._entries()
            if entry.instance is not None
            and entry.job is None
            and not entry.spec.is_pinned
            and entry.model_id not in claimed
        ]

    def _is_in_motion(self) -> bool:
        """Whether a running job or unload may free memory."""
        return bool(self._leaving.instances) or any(entry.job is not None for entry in self._entries())

    # Doing it

    def _start(self, entry: ModelEntry, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert entry.job is None, "one thing at a time"
        task = entry.job = asyncio.create_task(job, name=f"stoker-model-{entry.model_id}")
        task.add_done_callback(lambda task: self._note_job_end(entry, task))
        return task

    def _begin_load(self, entry: ModelEntry, victims: Sequence[tuple[ModelEntry, Instance]]) -> asyncio.Task[None]:
        """Reserves memory and takes the victims out without an `await`, so that no other decision comes between."""
        placed = self._placed(entry, sum(instance.device_bytes for _, instance in victims))
        entry.reserved_bytes = _least(placed)
        entry.reserved_device_bytes = placed.device_bytes if placed is not None else 0
        entry.is_loading = True
        if victims:
            self._tell(entry, "loading", stage="make_room")
        closings = [self._take_out(other, instance, "evicted", drain_s=0.0) for other, instance in victims]
        return self._start(entry, self._load(entry, closings, [other for other, _ in victims]))

    async def _measure(self, entry: ModelEntry) -> None:
        self._tell(entry, "loading", stage="measure")
        entry.error = None
        try:
            entry.needs = await asyncio.to_thread(entry.spec.measure)
            entry.is_measured = True
            self._ledger.learn_devices(entry.needs)
        except StokerError as error:
            self._fail(entry, error)

    async def _load(
        self, entry: ModelEntry, closings: Sequence[asyncio.Task[None]], victims: Sequence[ModelEntry]
    ) -> None:
        """Loads a model; if that fails, the victims that were unloaded for it are loaded again."""
        if closings:
            await asyncio.wait(closings)
        try:
            instance = await self._bring(entry, entry.spec)
        except StokerError as error:
            self._fail(entry, error)
            for victim in victims:
                victim.order()
        else:
            self._settle(entry, instance)

    async def _bring(self, entry: ModelEntry, spec: ModelSpec) -> Instance:
        """Starts a runtime; returns its instance. The plan fits into reserved and free memory, and is then reserved."""
        plan = None
        if entry.needs is not None:
            placed = entry.needs.placed(self._ledger.device_room() + entry.reserved_device_bytes)
            plan = placed.within(self._ledger.free() + entry.reserved_bytes)
            entry.reserved_bytes, entry.reserved_device_bytes = plan.total_bytes, plan.device_bytes
        self.events.publish(ModelEvent(model=entry.model_id, state="loading", stage="load", plan=plan))
        async with entry.changing_adapters:
            chosen = entry.adapters if spec.path == entry.spec.path else None
        adapters = None if chosen is None else [card.as_spec() for card in chosen]
        runtime = await started(spec, plan, adapters, lambda part: self._tell_part(entry, part))
        entry.adapters = None if chosen is None else tuple(runtime.card.adapters)
        on_use = None if self._lending is None else self._lending.wake
        return Instance(ServedModel(spec.names, runtime, entry.metrics), plan, self._clock, self.wake, on_use)

    def _instances(self) -> list[Instance]:
        """The loaded instances, and the instances that are being unloaded."""
        return [*(entry.instance for entry in self._entries() if entry.instance is not None), *self._leaving.instances]

    def _settle(self, entry: ModelEntry, instance: Instance) -> None:
        self._end_job(entry)
        entry.settle(instance)
        self._tell(entry, "loaded")

    async def _unload(self, entry: ModelEntry, instance: Instance, reason: str) -> None:
        await drained(instance, self._config.swap_drain_s)
        await asyncio.wait([self._take_out(entry, instance, reason, drain_s=0.0)])

    async def _replace(self, entry: ModelEntry, old: Instance, spec: ModelSpec) -> None:
        try:
            entry.needs = await asyncio.to_thread(spec.measure)
            placed = self._placed(entry, old.device_bytes)
            lack = self._ledger.lack(placed)
            has_room = max(lack.num_bytes, lack.device_bytes) <= 0
            entry.reserved_bytes = _least(placed)
            if not has_room:
                entry.is_draining = True
                await drained(old, self._config.swap_drain_s)
                entry.is_loading = True
                await asyncio.wait([self._take_out(entry, old, "replaced", drain_s=0.0)])
            instance = await self._bring(entry, spec)
        except Exception as fault:  # noqa: BLE001  # whatever it is, the old model goes on
            entry.reload_error = error = fault if isinstance(fault, StokerError) else _unknown(entry, fault)
            if entry.instance is None:
                entry.order()
            self._tell(entry, "loaded", reason="failed", message=error.message)
            return
        if entry.instance is not None:
            self._take_out(entry, old, "replaced", drain_s=self._config.swap_drain_s)
        entry.spec = spec
        self._settle(entry, instance)

    def _take_out(self, entry: ModelEntry, instance: Instance, reason: str, *, drain_s: float) -> asyncio.Task[None]:
        assert entry.instance is instance
        entry.take_out()
        entry.unloads[reason] += 1
        task = self._leaving.close_soon(instance, drain_s)
        task.add_done_callback(lambda _task: self.wake())
        self._tell(entry, "unloaded", reason=reason)
        return task

    def _fail(self, entry: ModelEntry, error: StokerError) -> None:
        entry.fail(error)
        self._tell(entry, "unloaded", reason="failed", message=error.message)

    def _tell(self, entry: ModelEntry, state: str, *, stage: str = "", reason: str = "", message: str = "") -> None:
        event = ModelEvent(model=entry.model_id, state=state, stage=stage, reason=reason, message=message)
        self.events.publish(event)

    def _tell_part(self, entry: ModelEntry, part: float) -> None:
        entry.loaded_part = part
        self.events.publish(ModelEvent(model=entry.model_id, state="loading", stage="load", loaded_part=part))

    def _end_job(self, entry: ModelEntry) -> None:
        """Forgets the job and its reservations; another job may begin."""
        entry.job, entry.reserved_bytes, entry.reserved_device_bytes, entry.loaded_part = None, 0, 0, None
        entry.is_loading = entry.is_draining = False

    def _note_job_end(self, entry: ModelEntry, task: asyncio.Task[None]) -> None:
        if entry.job is task:
            self._end_job(entry)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fail(entry, _unknown(entry, fault))
        self.wake()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Ends all waiting requests with an error if the deciding task fails: they would wait in vain."""
        if task.cancelled() or (fault := task.exception()) is None:
            return
        logger.error("models can no longer be loaded or unloaded", exc_info=fault)
        for entry in self._entries():
            entry.end_waiting(ModelNotLoaded("models can no longer be loaded or unloaded; restart the server"))


def _unknown(entry: ModelEntry, fault: BaseException) -> StokerError:
    logger.error("what was done to the model %s failed", entry.model_id, exc_info=fault)
    return StokerError(f"the model `{entry.model_id}` cannot be loaded: {type(fault).__name__}")


def _least(needs: MemoryNeeds | None) -> int:
    return needs.least_bytes if needs is not None else 0


def _candidate(entry: ModelEntry, instance: Instance) -> Candidate:
    return Candidate(
        entry.model_id, instance.num_bytes, instance.used_at, instance.is_idle, device_bytes=instance.device_bytes
    )


class Leaving:
    """Closes instances that left their entry. Belongs to one event loop; cancelling a waiter does not stop a close."""

    def __init__(self) -> None:
        self._tasks: dict[Instance, asyncio.Task[None]] = {}
        self._hurry = asyncio.Event()

    @property
    def instances(self) -> Mapping[Instance, asyncio.Task[None]]:
        """Instances that still occupy memory, each with the task that closes it."""
        return self._tasks

    def close_soon(self, instance: Instance, drain_s: float) -> asyncio.Task[None]:
        """Closes an instance when it is idle, at the latest after `drain_s` seconds; requests left then fail."""
        task = self._tasks[instance] = asyncio.create_task(self._close(instance, drain_s), name="stoker-unload")
        task.add_done_callback(lambda task: self._note_end(instance, task))
        return task

    async def close(self) -> None:
        """Stops waiting for running requests; returns when all instances are closed."""
        self._hurry.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _close(self, instance: Instance, drain_s: float) -> None:
        if drain_s:
            await drained(instance, drain_s, self._hurry)
        await instance.served.runtime.close()

    def _note_end(self, instance: Instance, task: asyncio.Task[None]) -> None:
        del self._tasks[instance]
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("%s could not be closed", instance.served.model_id, exc_info=fault)


async def drained(instance: Instance, limit_s: float, hurry: asyncio.Event | None = None) -> None:
    """Waits until the instance is idle, at most `limit_s` seconds, or until `hurry` is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in (instance.idle, hurry) if event is not None]
    try:
        done, _ = await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if not done:
        logger.warning("%s still has requests after %g s: they are ended", instance.served.model_id, limit_s)
