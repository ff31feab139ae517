"""The replicas of one model, wherever they run: which of them can be asked, and how they are together.

It starts none, routes nothing, and does not decide how many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from stoker.engine.cards import ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import IDLE, Health
from stoker.errors import ModelNotLoaded
from stoker.runtime.replica import Phase, Replica
from stoker.runtime.totals import Totals

FAILED = "failed"
_STATES = ("ready", "stalled", "restarting", "starting", FAILED, "closed")
"""The best first: of all replicas the best one says how the model is."""
_COMPUTING = ("ready", "stalled")


class ReplicaSet:
    """Belongs to one event loop. Each replica that is added is closed by it, when it is removed or with all others.

    Args:
        may_refill: further replicas may come when none is left.
        may_be_idle: there may be no replica for some time: a request has one started.
    """

    def __init__(self, *, may_refill: bool = False, may_be_idle: bool = False) -> None:
        self._may_refill = may_refill
        self._may_be_idle = may_be_idle
        self._totals = Totals()
        self._replicas: dict[int, Replica] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._first: Replica | None = None
        self._num_past_restarts = 0
        self._is_closed = False
        self._adapters: Sequence[AdapterSpec] | None = None

    def __contains__(self, replica: Replica) -> bool:
        return self._replicas.get(replica.number) is replica

    @property
    def replicas(self) -> list[Replica]:
        """All of them, by number."""
        return [self._replicas[number] for number in sorted(self._replicas)]

    @property
    def has_hope(self) -> bool:
        """It may pay to wait for a replica that can be asked."""
        return bool(self._replicas) or (self._may_refill and not self._is_closed)

    @property
    def is_idle(self) -> bool:
        """No replica gets requests, as is right while there are none. Some may be starting or draining."""
        is_known = self._may_be_idle and self._first is not None and not self._is_closed
        return is_known and not any(replica.phase is Phase.SERVING for replica in self._replicas.values())

    @property
    def free_number(self) -> int:
        """The lowest that none has now."""
        return next(number for number in range(len(self._replicas) + 1) if number not in self._replicas)

    @property
    def first(self) -> Replica:
        """The first one that was ever loaded. It may be gone; its card and its template still are those of the model.

        Raises:
            ModelNotLoaded: there is none yet.
        """
        if self._first is None:
            raise ModelNotLoaded("the model is still loading")
        return self._first

    @property
    def first_card(self) -> ModelCard | None:
        """That of `first`; None = nothing was loaded yet."""
        return None if self._first is None else self._first.card

    def answering(self) -> list[Replica]:
        """Replicas that can be asked; if there is none, the one closest to ready, whose own error explains why.

        Raises:
            ModelNotLoaded: the model is loading or closed, or no replica is left.
        """
        found = [replica for replica in self.replicas if replica.can_answer]
        if found:
            return found
        serving = [replica for replica in self.replicas if replica.phase is Phase.SERVING]
        if self.is_idle:
            raise ModelNotLoaded("no replica of the model runs: the next request starts one")
        if not serving:
            raise ModelNotLoaded("the model was closed" if self._is_closed else "the model is still loading")
        return [min(serving, key=lambda replica: _STATES.index(replica.runtime.health().state))]

    def computing(self) -> list[Replica]:
        """Replicas whose engine runs, whether they get requests or not."""
        return [replica for replica in self.replicas if replica.runtime.health().state in _COMPUTING]

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
            is_ready=self.is_idle or any(health.is_ready for health in healths.values()),
            state=IDLE if self.is_idle else next((state for state in _STATES if state in states), "starting"),
            num_restarts=self._num_past_restarts + sum(health.num_restarts for health in healths.values()),
            last_error=errors[0] if errors else None,
            heartbeat=self._totals.merged(alive) if alive or self.is_idle else None,
            loaded_part=max(parts) if parts else None,
            replicas=healths,
            encoder=next((health.encoder for health in healths.values() if health.encoder is not None), None),
        )

    def add(self, replica: Replica) -> None:
        """One more, under a number that none has."""
        assert replica.number not in self._replicas
        self._replicas[replica.number] = replica
        if self._adapters is not None:
            replica.runtime.begin_with(self._adapters)

    def serve(self, replica: Replica) -> None:
        """It is loaded, and gets requests from now on."""
        replica.phase = Phase.SERVING
        if self._first is None:
            self._first = replica

    def remove(self, replica: Replica) -> None:
        """It is no part of the model any more from here on; it is closed in the background."""
        del self._replicas[replica.number]
        self._num_past_restarts += replica.runtime.health().num_restarts
        self._totals.leave(replica.number)
        closing = asyncio.ensure_future(replica.runtime.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """What all engines that are started from now on have loaded; see `Runtime.begin_with`."""
        self._adapters = adapters
        for replica in self.replicas:
            replica.runtime.begin_with(adapters)

    def mark_closed(self) -> None:
        """The model is being closed: it says so from here on."""
        self._is_closed = True

    async def close(self) -> None:
        """Closes all that are left. Calling it twice is allowed."""
        self.mark_closed()
        for replica in self.replicas:
            self.remove(replica)
        await asyncio.gather(*self._closing)
