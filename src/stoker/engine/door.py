"""Admission control: how many requests may be alive, and when a refused client may retry. It queues nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import ceil

from stoker.errors import Overloaded

_MIN_RETRY_S, _MAX_RETRY_S = 1.0, 60.0


class Door:
    """Decides whether one more request is admitted. The caller counts the running and waiting requests.

    Args:
        capacity: maximum number of running and waiting requests.
        parallel: maximum number of running requests.
        clock: seconds; only differences count.
    """

    def __init__(self, *, capacity: int, parallel: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._parallel = parallel
        self._clock = clock
        self._departures: deque[float] = deque(maxlen=32)
        self._busy_since: float | None = None
        """When the first of the current requests arrived."""

    def check(self, num_inside: int) -> None:
        """Raises `Overloaded` if `num_inside` requests are alive and one more would exceed the capacity."""
        if num_inside == 0 or self._busy_since is None:
            self._busy_since = self._clock()
        if num_inside >= self._capacity:
            retry_after_s = self.retry_after_s()
            raise Overloaded(
                f"the queue is full: {num_inside} requests are running or waiting; {_advice(retry_after_s)}",
                retry_after_s=retry_after_s,
            )

    def check_tokens(self, num_tokens: int, limit: int) -> None:
        """Raises `Overloaded` if `num_tokens`, the prompt tokens that would wait, are more than `limit`."""
        if num_tokens > limit:
            retry_after_s = self.retry_after_s()
            message = f"the queue is full: {num_tokens} prompt tokens would wait; {_advice(retry_after_s)}"
            raise Overloaded(message, retry_after_s=retry_after_s)

    def note_departure(self, now: float) -> None:
        """Notes that one request has ended at `now`, in seconds on the clock."""
        self._departures.append(now)

    def retry_after_s(self) -> float:
        """Seconds after which a refused client should retry, 1 to 60: estimated time until `parallel` requests end.

        The estimate uses the recent rate. If no request has ended for longer, running ones probably take as long again.
        """
        return min(max(self._recent_s(), self._silent_s(), _MIN_RETRY_S), _MAX_RETRY_S)

    def _recent_s(self) -> float:
        if len(self._departures) < 2:
            return 0.0
        interval_s = (self._departures[-1] - self._departures[0]) / (len(self._departures) - 1)
        return interval_s * self._parallel

    def _silent_s(self) -> float:
        """Seconds for which requests have been alive without one of them ending."""
        if self._busy_since is None:
            return 0.0
        return self._clock() - max([self._busy_since, *self._departures])


def _advice(retry_after_s: float) -> str:
    """Advice to retry, in whole seconds like the Retry-After header of a response."""
    return f"try again in {ceil(retry_after_s)} s"
