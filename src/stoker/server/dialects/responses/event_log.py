"""The events of a response that runs in the background, kept so that clients can read its stream again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from stoker.errors import InvalidInput

MAX_BYTES: Final = 4 * 2**20
"""Maximum size of the events that are kept of one response: about 20,000 tokens, each with an event."""
MIN_EVENTS: Final = 16
"""Number of events that are kept even if they are larger: a few contain the whole response."""
_END = b"\n\n"
_BATCH = 64


class EventLog:
    """Keeps the events of one stream, numbered from 0, the latest up to a size. Belongs to one event loop.

    Args:
        max_bytes: maximum size of the events that are kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()
        self._num_events = 0
        """Number of events so far, including those that are no longer kept."""
        self._has_ended = False
        self._news = asyncio.Event()
        self.size_bytes = 0
        """Size of the events that are kept."""

    def add(self, events: bytes) -> None:
        """Adds whole events."""
        for event in events.split(_END)[:-1]:
            self._events.append(event)
            self._num_events += 1
            self.size_bytes += len(event)
        while self.size_bytes > self._max_bytes and len(self._events) > MIN_EVENTS:
            self.size_bytes -= len(self._events.popleft())
        self._tell()

    def end(self) -> None:
        """Ends the stream; calling it twice is allowed."""
        self._has_ended = True
        self._tell()

    async def read(self, number: int) -> AsyncGenerator[bytes, None]:
        """Yields the events from a number on, and waits for further ones until the stream ends.

        Raises:
            InvalidInput: some of the events are no longer kept, see `check`.
        """
        while True:
            self.check(number)
            if number < self._num_events:
                first = number - self._first
                batch = [self._events[index] for index in range(first, min(first + _BATCH, len(self._events)))]
                number += len(batch)
                yield b"".join(event + _END for event in batch)
            elif self._has_ended:
                return
            else:
                await self._news.wait()

    def check(self, number: int) -> None:
        """Raises InvalidInput if the events from a number on are not all kept."""
        if number < self._first:
            message = f"events before {self._first} are no longer kept: fetch the response without `stream`"
            raise InvalidInput(message, parameter="starting_after")

    @property
    def _first(self) -> int:
        """Number of the first event that is kept."""
        return self._num_events - len(self._events)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
