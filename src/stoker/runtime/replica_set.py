"""The set of replicas of one model, local or remote: which can be asked, and the card and health of them together.

A `Fleet` starts replicas and decides on their number; `routing` chooses the one for a request.
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
"""States of replicas, the best first. The model's state is the best state among its replicas."""
_COMPUTING = ("ready", "stalled")


class ReplicaSet:
    """The replicas of one model. Closes each one when it is removed, or with the set. Belongs to one event loop.

    Args:
        may_refill: replicas may be added again when none is left.
        may_be_idle: the model may have no replica while it gets no requests; a request starts one.
        hears_changes: `Replica.note_change` is called when the health of a replica changes. Else `take_changed` returns
            all replicas.
    """

    def __init__(self, *, may_refill: bool = False, may_be_idle: bool = False, hears_changes: bool = False) -> None:
        self._may_refill = may_refill
        self._may_be_idle = may_be_idle
        self._totals = Totals()
        self._hears_changes = hears_changes
        self._replicas: dict[int, Replica] = {}
        self._changed: set[int] = set()
        """Numbers of replicas that have changed since `take_changed`."""
        self._closing: set[asyncio.Task[None]] = set()
        self._first: Replica | None = None
        self._num_past_restarts = 0
        self._is_closed = False
        self._adapters: Sequence[AdapterSpec] | None = None

    def __contains__(self, replica: Replica) -> bool:
        return self._replicas.get(replica.number) is replica

    def __getitem__(self, number: int) -> Replica:
        return self._replicas[number]

    @property
    def replicas(self) -> list[Replica]:
        """All replicas, ordered by number."""
        return [self._replicas[number] for number in sorted(self._replicas)]

    def take_changed(self) -> list[tuple[int, Replica | None]]:
        """Replicas that may have changed since the last call, by number. None = there is no such replica any more."""
        changed, self._changed = self._changed, set()
        numbers = changed if self._hears_changes else changed | self._replicas.keys()
        return [(number, self._replicas.get(number)) for number in numbers]

    @property
    def has_hope(self) -> bool:
        """Whether a replica that can be asked may still appear, so that waiting makes sense."""
        return bool(self._replicas) or (self._may_refill and not self._is_closed)

    @property
    def is_idle(self) -> bool:
        """Whether the model is scaled to zero: it was loaded before, and no replica serves. Some may start or drain."""
        is_known = self._may_be_idle and self._first is not None and not self._is_closed
        return is_known and not any(replica.phase is Phase.SERVING for replica in self._replicas.values())

    @property
    def free_number(self) -> int:
        """The lowest number that no replica has."""
        return next(number for number in range(len(self._replicas) + 1) if number not in self._replicas)

    @property
    def first(self) -> Replica:
        """The first replica that was ever loaded. Even if it is gone, its card and chat template are the model's.

        Raises:
            ModelNotLoaded: no replica was loaded yet.
        """
        if self._first is None:
            raise ModelNotLoaded("the model is still loading")
        return self._first

    @property
    def first_card(self) -> ModelCard | None:
        """The card of `first`; None = no replica was loaded yet."""
        return None if self._first is None else self._first.card

    def answering(self) -> list[Replica]:
        """Replicas that can be asked; if there is none, the one closest to ready, whose error then explains why.

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
        """Replicas whose engine runs, whether they get requests or not, such as draining ones."""
        return [replica for replica in self.replicas if replica.runtime.health().state in _COMPUTING]

    def card(self) -> ModelCard:
        """The model's card, with the places, queue and KV pool of all serving replicas added up.

        Raises:
            ModelNotLoaded: no replica was ever loaded.
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
        """The model's health: ready if any replica is ready, or if the model is idle."""
        if self._is_closed:
            return Health(is_ready=False, state="closed")
        healths = {replica.number: replica.health() for replica in self.replicas}
        for number, health in healths.items():
            self._totals.note(number, health.num_restarts, health.heartbeat)
        alive = [health.heartbeat for health in healths.values() if health.heartbeat is not None]
        errors = [health.last_error for health in healths.values() if health.last_error and not health.is_ready]
        # The weights that the first replica loads are shared by all, so the largest fraction counts.
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
        """Adds a replica, whose number no other replica of the set may have."""
        assert replica.number not in self._replicas
        self._replicas[replica.number] = replica
        replica.listen(self._changed_at)
        if self._adapters is not None:
            replica.runtime.begin_with(self._adapters)

    def serve(self, replica: Replica) -> None:
        """Marks a loaded replica as serving: it gets requests from now on."""
        replica.phase = Phase.SERVING
        if self._first is None:
            self._first = replica

    def remove(self, replica: Replica) -> None:
        """Removes a replica and closes it in the background; its counters remain in the model's totals."""
        del self._replicas[replica.number]
        self._changed_at(replica.number)
        self._num_past_restarts += replica.runtime.health().num_restarts
        self._totals.leave(replica.number)
        closing = asyncio.ensure_future(replica.runtime.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _changed_at(self, number: int) -> None:
        self._changed.add(number)

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """Sets the adapters that all engines started from now on load; see `Runtime.begin_with`."""
        self._adapters = adapters
        for replica in self.replicas:
            replica.runtime.begin_with(adapters)

    def mark_closed(self) -> None:
        """Makes `health` and errors say from now on that the model is closed."""
        self._is_closed = True

    async def close(self) -> None:
        """Closes all remaining replicas. Calling it twice is allowed."""
        self.mark_closed()
        for replica in self.replicas:
            self.remove(replica)
        await asyncio.gather(*self._closing)
