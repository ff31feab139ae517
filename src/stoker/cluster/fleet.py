"""The fleet of a model in a cluster: connects to each replica that the cluster lists, and drains those that leave.

```
   listed             connected              no longer listed        last request ended
  ──────────► loading ──────────► serving ─────────────────► draining ────────────────► closed
                 │ refused            │ lost                                                ▲
                 └────────────────────┴─────────────────────────────────────────────────────┘
```

A lost replica that the cluster still lists is connected again. Ray Serve decides the number of replicas and their
nodes. If a model is scaled to zero, a request makes the fleet ask the cluster for a replica, and waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from random import random

from stoker.cluster.remote import RemoteEngine
from stoker.engine.cards import is_same_model
from stoker.errors import ModelNotLoaded, Overloaded, StokerError
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.replica import Phase, Replica
from stoker.runtime.replica_set import ReplicaSet

logger = logging.getLogger(__name__)

CHECK_S = 0.5
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """How requests of a model that is scaled to zero get a replica."""

    wake: Callable[[], Awaitable[None]]
    """Asks the cluster for a replica. Returns when there is one, or earlier; may be cancelled."""
    wait_s: float
    """Maximum time for which a request waits for a replica, in seconds."""
    max_waiting: int
    """Maximum number of requests that wait for a replica."""


class ClusterFleet:
    """The `Fleet` of one model in a cluster, as one front sees it. Belongs to one event loop.

    Args:
        present: returns the ids of the replicas that run now.
        connect: makes the runtime of a replica by its id, without starting it.
        start_s: seconds that `start` waits for the first replica.
        idle: how to get a replica of an idle model; None = the model always has one.
    """

    def __init__(
        self,
        present: Callable[[], Collection[str]],
        connect: Callable[[str], RemoteEngine],
        start_s: float = 900.0,
        idle: Idle | None = None,
    ) -> None:
        self.members = ReplicaSet(may_refill=True, may_be_idle=idle is not None, hears_changes=True)
        self.prefixes = CachedPrefixes()
        self._present = present
        self._connect = connect
        self._start_s = start_s
        self._idle = idle
        self._waking: asyncio.Task[None] | None = None
        self._num_waiting = 0
        """Requests that wait for a replica of an idle model."""
        self._ids: dict[Replica, str] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._last_error = ""
        """Why a replica could not be connected to last."""
        self._others: set[str] = set()
        """Ids of replicas that serve another model, and get no requests."""
        self._on_checked: Callable[[], None] = lambda: None
        self._serves = asyncio.Event()
        """Set while any replica gets requests."""
        self._checking: asyncio.Task[None] | None = None
        self._is_closed = False

    def listen(self, on_checked: Callable[[], None]) -> None:
        """See `Fleet`."""
        self._on_checked = on_checked

    async def start(self) -> None:
        """Returns when a replica can be asked.

        Raises:
            ModelNotLoaded: no replica was ready in time.
        """
        self._checking = asyncio.create_task(self._keep_checking(), name="stoker-cluster-fleet")
        self._checking.add_done_callback(self._note_fault)
        try:
            async with asyncio.timeout(self._start_s):
                await self._serves.wait()
        except TimeoutError:
            await self.close()
            reason = f". The last error: {self._last_error}" if self._last_error else ""
            raise ModelNotLoaded(f"no replica of the model answered within {self._start_s:g} s{reason}") from None

    async def wake(self, limit_s: float | None = None) -> None:
        """See `Fleet`."""
        idle = self._idle
        if idle is None or not self.members.is_idle:
            return
        if self._num_waiting >= idle.max_waiting:
            message = f"{idle.max_waiting} requests wait for a replica of the model already"
            raise Overloaded(message, retry_after_s=_RETRY_S)
        wait_s = idle.wait_s if limit_s is None else min(limit_s, idle.wait_s)
        self._num_waiting += 1
        if self._waking is None:
            self._waking = asyncio.create_task(self._keep_waking(idle), name="stoker-cluster-wake")
        try:
            async with asyncio.timeout(wait_s):
                while self.members.is_idle:
                    await self._serves.wait()
        except TimeoutError:
            message = f"no replica of the model was started within {wait_s:g} s"
            raise ModelNotLoaded(message, retry_after_s=_RETRY_S) from None
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._waking.cancel()
                self._waking = None

    def check(self) -> None:
        """Connects to new replicas, and drops those that have left."""
        self.members.health()  # notes the counters of each replica, which are lost when it is gone
        present = set(self._present())
        for replica in list(self._ids):
            self._look_at(replica, present)
        for replica_id in sorted(self._unconnected(present)):
            self._add(replica_id)
        self._note_serving()
        self._on_checked()

    async def close(self) -> None:
        """Disconnects from all replicas. Calling it twice is allowed."""
        self._is_closed = True
        self.members.mark_closed()
        self._serves.set()  # ends the wait of requests, which then fail
        tasks = [task for task in (self._checking, self._waking, *self._connecting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ids.clear()
        await self.members.close()

    def _unconnected(self, present: set[str]) -> set[str]:
        return present - set(self._ids.values()) - self._others

    def _look_at(self, replica: Replica, present: set[str]) -> None:
        is_there = self._ids[replica] in present
        is_lost = replica.runtime.health().state == "failed"
        may_leave = replica.phase is Phase.SERVING and not is_lost and not self._is_last(replica, present)
        if not is_there and may_leave:
            logger.info("replica %d leaves when its %d requests have ended", replica.number, replica.num_open)
            replica.phase = Phase.DRAINING
        elif is_there and replica.phase is Phase.DRAINING:
            replica.phase = Phase.SERVING
        is_idle = replica.phase is Phase.DRAINING and replica.num_open == 0
        if is_idle or (is_lost and replica.num_open == 0):
            self._let_go(replica)

    def _is_last(self, replica: Replica, present: set[str]) -> bool:
        """Whether no other replica can answer yet, but one is on its way: a leaving replica answers until then."""
        others = [other for other in self.members.replicas if other is not replica]
        is_succeeded = bool(self._unconnected(present)) or any(other.phase is Phase.LOADING for other in others)
        return is_succeeded and not any(other.can_answer for other in others)

    def _add(self, replica_id: str) -> None:
        runtime = self._connect(replica_id)
        replica = Replica(self.members.free_number, runtime, rank=random())
        runtime.note_in(self.prefixes, replica.number)
        runtime.listen(replica.note_change)
        self.members.add(replica)
        self._ids[replica] = replica_id
        task = asyncio.create_task(self._start(replica, replica_id), name=f"stoker-connect-{replica_id}")
        self._connecting.add(task)
        task.add_done_callback(lambda task: self._note_start(replica, task))

    def _note_start(self, replica: Replica, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("replica %d cannot be connected to", replica.number, exc_info=fault)
            self._let_go(replica)

    async def _start(self, replica: Replica, replica_id: str) -> None:
        try:
            card, first = await replica.runtime.start(), self.members.first_card
        except StokerError as error:
            logger.info("replica %s cannot be connected to yet: %s", replica_id, error.message)
            self._last_error = error.message
            self._let_go(replica)
            return
        if first is not None and not is_same_model(card, first):
            logger.error("replica %s has another model (%s), and gets no requests", replica_id, card.path)
            self._others.add(replica_id)
            self._let_go(replica)
            return
        self.members.serve(replica)
        self._note_serving()
        self._on_checked()

    def _note_serving(self) -> None:
        if any(replica.phase is Phase.SERVING for replica in self.members.replicas):
            self._serves.set()
        else:
            self._serves.clear()

    def _let_go(self, replica: Replica) -> None:
        if self._ids.pop(replica, None) is not None and replica in self.members:
            self.prefixes.drop(replica.number)
            self.members.remove(replica)

    async def _keep_waking(self, idle: Idle) -> None:
        """Asks for a replica until there is one. A call may end early, if it reaches a replica that is about to go."""
        while True:
            if not self._present():
                await idle.wake()
            await asyncio.sleep(CHECK_S)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Goes on after a bug: without it, this front would never connect to another replica."""
        if not task.cancelled() and (fault := task.exception()) is not None and not self._is_closed:
            logger.error("the replicas cannot be checked; trying again", exc_info=fault)
            self._checking = asyncio.create_task(self._keep_checking(wait_s=_RETRY_S), name="stoker-cluster-fleet")
            self._checking.add_done_callback(self._note_fault)

    async def _keep_checking(self, wait_s: float = 0) -> None:
        await asyncio.sleep(wait_s)
        while True:
            self.check()
            await asyncio.sleep(CHECK_S)
