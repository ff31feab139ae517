"""Who waits for one of an external server's slots, and whose turn is next. It knows no HTTP.

llama-server's own queue has no bound, no priorities and no fairness, and it fails running neighbors when KV runs out:
so no request is sent to it before there is a slot, and room for the longest possible answer. vLLM preempts by itself,
and needs no bound on tokens; its own queue knows no fairness between clients either.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stoker.core.request import Request
from stoker.core.sequence import Sequence
from stoker.core.waiting import WaitingQueue
from stoker.engine.door import Door


@dataclass(slots=True, eq=False)
class Place:
    """One request until it leaves."""

    sequence: Sequence
    num_tokens: int
    """The most that it can ever hold."""
    turn: asyncio.Future[None]


class SlotQueue:
    """Belongs to one event loop.

    Args:
        parallel: most requests that run at the same time.
        pool_tokens: KV of all of them together, as far as it bounds them.
        max_queue_tokens: most prompt tokens that wait.
        door: told about departures, and refuses.
    """

    def __init__(self, *, parallel: int, pool_tokens: int, max_queue_tokens: int, door: Door) -> None:
        self._parallel = parallel
        self._pool_tokens = pool_tokens
        self._max_queue_tokens = max_queue_tokens
        self._door = door
        self._queue = WaitingQueue()
        self._waiting: dict[Sequence, Place] = {}
        self._running: dict[Sequence, Place] = {}
        self.running_since = 0.0
        """Since when at least one request runs without a break, on the event loop's clock."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def check(self, request: Request) -> None:
        """Raises `Overloaded` if it would wait behind others, and so make too many prompt tokens wait."""
        if self._waiting:
            num_tokens = sum(len(sequence.request.prompt) for sequence in self._waiting)
            self._door.check_tokens(num_tokens + len(request.prompt), self._max_queue_tokens)

    async def enter(self, request: Request, num_tokens: int) -> Place:
        """Waits for a place; the caller leaves it afterwards.

        Args:
            request: says its priority and its client.
            num_tokens: the most that it can ever hold; more than the pool counts as all of it.
        """
        turn = asyncio.get_running_loop().create_future()
        place = Place(Sequence(request), min(num_tokens, self._pool_tokens), turn)
        self._waiting[place.sequence] = place
        self._queue.push(place.sequence)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            self.leave(place)
            raise
        return place

    def leave(self, place: Place) -> None:
        """It has ended, or does not wait any more."""
        if self._waiting.pop(place.sequence, None) is not None:
            self._queue.remove(place.sequence)
        self._running.pop(place.sequence, None)
        self._queue.forget_idle({sequence.request.client_key for sequence in self._running})
        self._door.note_departure(asyncio.get_running_loop().time())
        self._admit()

    def charge(self, request: Request, num_tokens: int) -> None:
        """Its client was given so many tokens."""
        self._queue.charge(request.client_key, num_tokens)

    def _admit(self) -> None:
        while self.num_running < self._parallel and (candidates := self._queue.candidates(1)):
            place = self._waiting[candidates[0]]
            if sum(other.num_tokens for other in self._running.values()) + place.num_tokens > self._pool_tokens:
                return
            if not self._running:
                self.running_since = asyncio.get_running_loop().time()
            self._queue.take(place.sequence)
            self._running[place.sequence] = self._waiting.pop(place.sequence)
            self.charge(place.sequence.request, len(place.sequence.request.prompt))
            if not place.turn.done():  # else its task was cancelled a moment ago, and will leave
                place.turn.set_result(None)
