"""How far the loading of a model is, told by the process that loads to the one that waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.engine.protocol import Loading

_TELL_EVERY_S = 0.1


class LoadProgress:
    """A `models.Progress` of weights on their way into memory. It tells at most ten times a second.

    Args:
        tell: is given the news; it must not wait.
        clock: seconds; only differences count.
    """

    def __init__(self, tell: Callable[[Loading], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._total = 0
        self._done = 0
        self._told_at = float("-inf")

    def start(self, total_bytes: int | None, label: str) -> None:
        """See `models.Progress.start`; of an unknown size nothing can be said."""
        self._total, self._done = total_bytes or 0, 0

    def advance(self, num_bytes: int) -> None:
        """See `models.Progress.advance`."""
        self._done += num_bytes
        now = self._clock()
        if self._total and (now >= self._told_at + _TELL_EVERY_S or self._done >= self._total):
            self._told_at = now
            self._tell(Loading(min(1.0, self._done / self._total)))

    def close(self) -> None:
        """See `models.Progress.close`."""
