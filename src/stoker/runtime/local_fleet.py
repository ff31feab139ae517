"""The fleet of replicas that are processes of this machine: adds, drains and removes them as the load demands.

```
      add                loaded                 give up             last request ended
   ─────────► loading ────────────► serving ◄───────────► draining ────────────────────► closed
                 │ failed              │ failed   added again
                 └──────► closed ◄─────┘
```
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from stoker.engine.cards import ModelCard, is_same_model
from stoker.engine.closing import aclosing_on_error
from stoker.errors import ModelFileInvalid, StokerError
from stoker.runtime.autoscaling import Autoscaler, Demand
from stoker.runtime.base import Runtime
from stoker.runtime.block_follower import BlockFollower
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.replica import Phase, Replica
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replica_set import FAILED, ReplicaSet

logger = logging.getLogger(__name__)

MakeRuntime: TypeAlias = Callable[[int, ModelCard | None], Runtime]
"""Makes the runtime of the replica with this number, without starting it. All but the first get the first's card."""

CHECK_S = 1.0


class LocalFleet:
    """The `Fleet` of one machine. Belongs to one event loop.

    Args:
        make: makes a replica's runtime. An engine that dies must end its requests at once, see `EngineClient.repeats`.
        config: the number of replicas, and when it changes.
        clock: seconds; only differences count.
    """

    def __init__(self, make: MakeRuntime, config: ReplicaConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.members = ReplicaSet()
        self.prefixes = CachedPrefixes(clock)
        self._make = make
        self._on_checked: Callable[[], None] = lambda: None
        self._config = config
        self._clock = clock
        self._scaler = Autoscaler(config)
        self._loads: dict[Replica, asyncio.Task[None]] = {}
        self._followers: dict[Replica, BlockFollower] = {}
        self._ending: set[asyncio.Future[None]] = set()
        """Tasks that close the followers of removed replicas."""
        self._checking: asyncio.Task[None] | None = None

    def listen(self, on_checked: Callable[[], None]) -> None:
        """See `Fleet`."""
        self._on_checked = on_checked

    async def start(self) -> None:
        """Loads the first replica, then concurrently the others up to the minimum number.

        Raises:
            StokerError: a replica cannot be loaded; no replica is left.
        """
        async with aclosing_on_error(self.close):
            first = self._new()
            await self._start(first)
            await _all_or_first_error([self._start(self._new()) for _ in range(self._config.min_replicas - 1)])
        self._checking = asyncio.create_task(self._keep_checking(), name="stoker-replicas")
        self._checking.add_done_callback(_note_fault)

    async def wake(self, limit_s: float | None = None) -> None:
        """Does nothing, because a local model always has a replica. See `Fleet`."""

    def check(self) -> None:
        """Scales, and removes replicas that have drained or failed; to be called about once a second."""
        self.members.health()  # notes the counters of each process, which are lost when it dies
        for replica in self.members.replicas:
            is_idle = replica.phase is Phase.DRAINING and replica.num_open == 0
            has_failed = replica.phase is Phase.SERVING and replica.runtime.health().state == FAILED
            if is_idle or has_failed:
                self._remove(replica)
        change = self._scaler.decide(self._clock(), self._demand())
        if change > 0:
            self._add()
        elif change < 0:
            self._give_one_up()
        self._on_checked()

    async def close(self) -> None:
        """Cancels loads and closes all replicas. Calling it twice is allowed."""
        self.members.mark_closed()
        tasks = [task for task in (self._checking, *self._loads.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in list(self._followers):
            self._stop_following(replica)
        await asyncio.gather(*self._ending)
        await self.members.close()

    def _remove(self, replica: Replica) -> None:
        self._stop_following(replica)
        self.prefixes.drop(replica.number)
        self.members.remove(replica)

    def _follow(self, replica: Replica) -> None:
        """Follows the replica's KV blocks, which routing needs only if there may be several replicas."""
        if self._config.max_replicas > 1:
            follower = self._followers[replica] = BlockFollower(replica.runtime)
            follower.listen(lambda answer: self.prefixes.note_held(replica.number, answer))

    def _stop_following(self, replica: Replica) -> None:
        if (follower := self._followers.pop(replica, None)) is not None:
            ending = asyncio.ensure_future(follower.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _demand(self) -> Demand:
        staying = [replica for replica in self.members.replicas if replica.phase is not Phase.DRAINING]
        serving = [replica for replica in staying if replica.phase is Phase.SERVING]
        return Demand(
            num_replicas=len(staying),
            num_open=sum(replica.num_open for replica in self.members.replicas),
            num_waiting=sum(replica.num_waiting(replica.runtime.health().heartbeat) for replica in serving),
            is_loading=len(serving) < len(staying),
        )

    def _new(self) -> Replica:
        number = self.members.free_number
        assert number < self._config.max_replicas
        replica = Replica(number, self._make(number, self.members.first_card))
        self.members.add(replica)
        return replica

    def _add(self) -> None:
        """Adds a replica; prefers a draining one, which still has the model in memory."""
        draining = next((r for r in self.members.replicas if r.phase is Phase.DRAINING), None)
        if draining is not None:
            draining.phase = Phase.SERVING
            logger.info("replica %d goes on", draining.number)
            return
        replica = self._new()
        logger.info("loading replica %d", replica.number)
        task = self._loads[replica] = asyncio.create_task(self._start(replica), name=f"stoker-replica-{replica.number}")
        task.add_done_callback(lambda task: self._note_load(replica, task))

    def _note_load(self, replica: Replica, task: asyncio.Task[None]) -> None:
        del self._loads[replica]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            logger.info("replica %d is ready", replica.number)
            return
        if isinstance(error, StokerError):
            logger.warning("replica %d cannot be loaded: %s", replica.number, error.message)
        else:
            logger.error("replica %d cannot be loaded", replica.number, exc_info=error)
        self._scaler.note_failure(self._clock())
        if replica in self.members:
            self._remove(replica)

    def _give_one_up(self) -> None:
        """Drains the replica with the fewest requests; among equals, the newest."""
        serving = [replica for replica in self.members.replicas if replica.phase is Phase.SERVING]
        replica = min(serving, key=lambda replica: (replica.num_open, -replica.number))
        logger.info("replica %d is given up when its %d requests have ended", replica.number, replica.num_open)
        replica.phase = Phase.DRAINING

    async def _start(self, replica: Replica) -> None:
        """Raises StokerError if the replica cannot be loaded, or if its file has changed since the first one's load."""
        card, first = await replica.runtime.start(), self.members.first_card
        if first is not None and not is_same_model(card, first):
            raise ModelFileInvalid(
                f"found another model in {card.path}: the file was changed after it was loaded; load the model again",
                path=card.path,
            )
        self.members.serve(replica)
        self._follow(replica)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()


async def _all_or_first_error(loads: list[Coroutine[Any, Any, None]]) -> None:
    """Runs the loads concurrently; as soon as one fails, cancels the others and raises its error."""
    tasks = [asyncio.ensure_future(load) for load in loads]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _note_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        logger.error("the replicas are not supervised any more", exc_info=fault)
