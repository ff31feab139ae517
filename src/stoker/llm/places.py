"""A semaphore that limits the requests of an `AsyncLLM` in its engine, across all event loops that use it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from stoker.engine.closing import closing_on_error
from stoker.llm.batch_run import POLL_S


class Places:
    """A first-come, first-served semaphore for several event loops. Safe to use from several threads."""

    def __init__(self, num_places: int) -> None:
        self._lock = threading.Lock()
        self._num_free = num_places
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, Future[None]]] = deque()

    async def take(self, free_places: Callable[[], None]) -> None:
        """Waits for a place; the caller returns it with `give_back`.

        Args:
            free_places: called every `POLL_S` seconds during the wait; an error that it raises ends the wait.
        """
        turn: Future[None] = Future()
        with self._lock:
            if self._num_free:
                self._num_free -= 1
                return
            self._waiting.append((asyncio.get_running_loop(), turn))
        with closing_on_error(lambda: turn.cancel() or self.give_back()):  # canceled after the place was assigned
            waiting = asyncio.wrap_future(turn)
            while not (await asyncio.wait([waiting], timeout=POLL_S))[0]:
                free_places()
            await waiting

    def give_back(self) -> None:
        """Returns a place; the first waiter, if there is one, gets it."""
        with self._lock:
            turn = self._next_turn()
            if turn is None:
                self._num_free += 1
        if turn is not None:
            turn.set_result(None)

    def _next_turn(self) -> Future[None] | None:
        while self._waiting:
            loop, turn = self._waiting.popleft()
            if not loop.is_closed() and turn.set_running_or_notify_cancel():
                return turn
        return None
