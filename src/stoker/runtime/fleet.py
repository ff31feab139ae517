"""The replicas of one model: how they come, drain and go, and how they are together. It routes nothing.

```
      add                loaded                 give up             last request ended
   ─────────► loading ────────────► serving ◄───────────► draining ────────────────────► closed
                 │ failed              │ failed      add again
                 └──────► closed ◄─────┘
```
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import msgspec

from stoker.engine.cards import ModelCard, is_same_model
from stoker.engine.closing import aclosing_on_error
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.errors import ModelFileInvalid, ModelNotLoaded, StokerError
from stoker.runtime.autoscaling import Autoscaler, Demand
from stoker.runtime.base import Runtime
from stoker.runtime.replica import Phase, Replica
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.totals import Totals

logger = logging.getLogger(__name__)

MakeRuntime: TypeAlias = Callable[[int, ModelCard | None], Runtime]
"""Makes the runtime of the replica of this number, not started; all but the first are told what the first became."""

CHECK_S = 1.0
_FAILED = "failed"
_STATES = ("ready", "stalled", "restarting", "starting", _FAILED, "closed")
"""The best first: of all replicas the best one says how the model is."""
_COMPUTING = ("ready", "stalled")


class Fleet:
    """Belongs to one event loop.

    Args:
        make: makes a replica's runtime.
        config: how many there are.
        clock: seconds; only differences count.
        on_checked: called whenever somebody has looked after them: there may be free places.
    """

    def __init__(
        self,
        make: MakeRuntime,
        config: ReplicaConfig,
        clock: Callable[[], float],
        on_checked: Callable[[], None],
    ) -> None:
        self._make = make
        self._on_checked = on_checked
        self._config = config
        self._clock = clock
        self._scaler = Autoscaler(config)
        self._totals = Totals()
        self._replicas: dict[int, Replica] = {}
        self._loads: dict[Replica, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._first: Replica | None = None
        self._num_past_restarts = 0
        self._is_closed = False
        self._adapters: Sequence[AdapterSpec] | None = None

    @property
    def replicas(self) -> list[Replica]:
        """All of them, by number."""
        return [self._replicas[number] for number in sorted(self._replicas)]

    @property
    def first(self) -> Replica:
        """The first one that was ever loaded. It may be gone; its card and its template still are those of the model.

        Raises:
            ModelNotLoaded: there is none yet.
        """
        if self._first is None:
            raise ModelNotLoaded("the model is still loading")
        return self._first

    def answering(self) -> list[Replica]:
        """Those that can be asked; if there is none, the one that comes nearest, to say so itself.

        Raises:
            ModelNotLoaded: the model is loading or closed.
        """
        found = [replica for replica in self.replicas if replica.can_answer]
        if found:
            return found
        serving = [replica for replica in self.replicas if replica.phase is Phase.SERVING]
        if not serving:
            raise ModelNotLoaded("the model was closed" if self._is_closed else "the model is still loading")
        return [min(serving, key=lambda replica: _STATES.index(replica.runtime.health().state))]

    def card(self) -> ModelCard:
        """That of the model: places, queue and pool of all serving replicas together.

        Raises:
            ModelNotLoaded: none was ever loaded.
        """
        cards = [replica.card for replica in self._replicas.values() if replica.phase is Phase.SERVING]
        if not cards:
            return self.first.card
        return msgspec.structs.replace(
            self.first.card,
            parallel=sum(card.parallel for card in cards),
            max_queue=sum(card.max_queue for card in cards),
            kv_tokens=sum(card.kv_tokens for card in cards),
        )

    async def start(self) -> None:
        """Loads the first replica, then, together, those that there shall be at least.

        Raises:
            StokerError: one of them cannot be loaded; none is left.
        """
        async with aclosing_on_error(self.close):
            first = self._new()
            await _start(first, None)
            self._first = first
            await _all_or_first_error([_start(self._new(), first.card) for _ in range(self._config.min_replicas - 1)])
        self._checking = asyncio.create_task(self._keep_checking(), name="stoker-replicas")
        self._checking.add_done_callback(_note_fault)

    def health(self) -> Health:
        """How the model is: ready as long as any replica is."""
        if self._is_closed:
            return Health(is_ready=False, state="closed")
        healths = {replica.number: replica.health() for replica in self.replicas}
        for number, health in healths.items():
            self._totals.note(number, health.num_restarts, health.heartbeat)
        alive = [health.heartbeat for health in healths.values() if health.heartbeat is not None]
        errors = [health.last_error for health in healths.values() if health.last_error and not health.is_ready]
        # The first one to load brings the weights for all.
        parts = [health.loaded_part for health in healths.values() if health.loaded_part is not None]
        states = {health.state for health in healths.values()}
        return Health(
            is_ready=any(health.is_ready for health in healths.values()),
            state=next((state for state in _STATES if state in states), "starting"),
            num_restarts=self._num_past_restarts + sum(health.num_restarts for health in healths.values()),
            last_error=errors[0] if errors else None,
            heartbeat=self._totals.merged(alive) if alive else None,
            loaded_part=max(parts) if parts else None,
            replicas=healths,
        )

    def computing(self) -> list[Replica]:
        """Those whose engine is there, whether it gets requests or not."""
        return [replica for replica in self.replicas if replica.runtime.health().state in _COMPUTING]

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """What all engines that are started from now on have loaded; see `Runtime.begin_with`."""
        self._adapters = adapters
        for replica in self.replicas:
            replica.runtime.begin_with(adapters)

    def check(self) -> None:
        """Looks after everybody; to be called about once a second."""
        self.health()  # what a process has counted so far is noted before it may die
        for replica in self.replicas:
            is_idle = replica.phase is Phase.DRAINING and replica.num_open == 0
            has_failed = replica.phase is Phase.SERVING and replica.runtime.health().state == _FAILED
            if is_idle or has_failed:
                self._remove(replica)
        change = self._scaler.decide(self._clock(), self._demand())
        if change > 0:
            self._add()
        elif change < 0:
            self._give_one_up()
        self._on_checked()

    async def close(self) -> None:
        """Ends everything. Calling it twice is allowed."""
        self._is_closed = True
        tasks = [task for task in (self._checking, *self._loads.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self.replicas:
            self._remove(replica)
        await asyncio.gather(*self._closing)

    def _demand(self) -> Demand:
        staying = [replica for replica in self._replicas.values() if replica.phase is not Phase.DRAINING]
        serving = [replica for replica in staying if replica.phase is Phase.SERVING]
        return Demand(
            num_replicas=len(staying),
            num_open=sum(replica.num_open for replica in self._replicas.values()),
            num_waiting=sum(replica.num_waiting(replica.runtime.health().heartbeat) for replica in serving),
            is_loading=len(serving) < len(staying),
        )

    def _new(self) -> Replica:
        number = next(number for number in range(len(self._replicas) + 1) if number not in self._replicas)
        assert number < self._config.max_replicas
        first = None if self._first is None else self._first.card
        replica = self._replicas[number] = Replica(number, self._make(number, first))
        if self._adapters is not None:
            replica.runtime.begin_with(self._adapters)
        return replica

    def _add(self) -> None:
        """One more: one that is draining has the model in memory still."""
        draining = next((replica for replica in self.replicas if replica.phase is Phase.DRAINING), None)
        if draining is not None:
            draining.phase = Phase.SERVING
            logger.info("replica %d goes on", draining.number)
            return
        replica = self._new()
        logger.info("loading replica %d", replica.number)
        self._loads[replica] = asyncio.create_task(self._load(replica), name=f"stoker-replica-{replica.number}")

    async def _load(self, replica: Replica) -> None:
        try:
            await _start(replica, self.first.card)
            logger.info("replica %d is ready", replica.number)
        except StokerError as error:
            logger.warning("replica %d cannot be loaded: %s", replica.number, error.message)
            self._scaler.note_failure(self._clock())
            self._remove(replica)
        finally:
            self._loads.pop(replica, None)

    def _give_one_up(self) -> None:
        """The one with the least to do; of several, the newest."""
        serving = [replica for replica in self.replicas if replica.phase is Phase.SERVING]
        replica = min(serving, key=lambda replica: (replica.num_open, -replica.number))
        logger.info("replica %d is given up when its %d requests have ended", replica.number, replica.num_open)
        replica.phase = Phase.DRAINING

    def _remove(self, replica: Replica) -> None:
        """It is no part of the model any more from here on; its process ends in the background."""
        del self._replicas[replica.number]
        self._num_past_restarts += replica.runtime.health().num_restarts
        self._totals.leave(replica.number)
        closing = asyncio.ensure_future(replica.runtime.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()


async def _start(replica: Replica, first: ModelCard | None) -> None:
    """Raises StokerError if it cannot be loaded, or has become another model than the first one."""
    card = await replica.runtime.start()
    if first is not None and not is_same_model(card, first):
        raise ModelFileInvalid(
            f"found another model in {card.path}: the file was changed since it was loaded; have it loaded again",
            path=card.path,
        )
    replica.phase = Phase.SERVING


async def _all_or_first_error(loads: list[Coroutine[Any, Any, None]]) -> None:
    """As soon as one fails, the others are given up."""
    tasks = [asyncio.ensure_future(load) for load in loads]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _note_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        logger.error("nobody looks after the replicas any more", exc_info=fault)
