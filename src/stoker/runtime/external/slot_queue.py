"""The queue in front of an external server: it decides which request gets the next free slot. It knows no HTTP.

llama-server's own queue has no limit, no priorities and no fairness, and llama-server fails other running requests when
its KV cache is full. Requests are therefore sent only when a slot and KV for the longest possible answer are free. vLLM
preempts requests itself and needs no limit on tokens, but its own queue has no fairness between clients, either.
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
    """A request's place in the queue or in a slot, from `SlotQueue.enter` to `SlotQueue.leave`."""

    sequence: Sequence
    num_tokens: int
    """Maximum number of tokens that the request can ever hold."""
    turn: asyncio.Future[None]


class SlotQueue:
    """The queue of one server. Belongs to one event loop.

    Args:
        parallel: maximum number of requests that run at the same time.
        pool_tokens: maximum number of tokens that all running requests together may hold.
        max_queue_tokens: maximum number of waiting prompt tokens.
        door: refuses requests if too many tokens wait; is told when requests leave.
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
        """The time on the event loop's clock since when at least one request has been running without a break."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def check(self, request: Request) -> None:
        """Raises `Overloaded` if other requests wait and this one would make too many prompt tokens wait."""
        if self._waiting:
            num_tokens = sum(len(sequence.request.prompt) for sequence in self._waiting)
            self._door.check_tokens(num_tokens + len(request.prompt), self._max_queue_tokens)

    async def enter(self, request: Request, num_tokens: int) -> Place:
        """Waits until the request may run. The caller gives the place to `leave` afterwards.

        Args:
            request: the request, with its priority and its client.
            num_tokens: maximum number of tokens that the request can ever hold; capped at `pool_tokens`.
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
        """Frees the place of a request that has ended, or that waits no more."""
        if self._waiting.pop(place.sequence, None) is not None:
            self._queue.remove(place.sequence)
        self._running.pop(place.sequence, None)
        self._queue.forget_idle({sequence.request.client_key for sequence in self._running})
        self._door.note_departure(asyncio.get_running_loop().time())
        self._admit()

    def charge(self, request: Request, num_tokens: int) -> None:
        """Charges `num_tokens`, of the prompt or generated, to the request's client, for fairness between clients."""
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
            if not place.turn.done():  # else its task was just cancelled, and will call `leave`
                place.turn.set_result(None)
