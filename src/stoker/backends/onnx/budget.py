"""Memory for KV that several models share: each takes its part when it is loaded and gives it back when it is closed.

A part is fixed while a model lives, so what one model's requests need can never fail another's.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from stoker.errors import ResourceExhausted


class KVBudget:
    """So many bytes for all models that are given this budget. Safe to use from several threads.

    Args:
        num_bytes: of all together.
        share_bytes: most that one of them gets, so that replicas divide it fairly; None = whatever is left.
    """

    def __init__(self, num_bytes: int, *, share_bytes: int | None = None) -> None:
        self._lock = threading.Lock()
        self._free = num_bytes
        self._share = share_bytes

    @property
    def num_free_bytes(self) -> int:
        """What nobody has."""
        return self._free

    def lease(self, num_bytes: int) -> Lease:
        """Takes what is wanted, or as much of it as there is.

        Raises:
            ResourceExhausted: nothing is left.
        """
        with self._lock:
            granted = min(num_bytes, self._free, num_bytes if self._share is None else self._share)
            if granted <= 0:
                raise ResourceExhausted(
                    "the memory for KV that the models share is used up: close one, or give each less",
                    needed_bytes=num_bytes,
                    available_bytes=self._free,
                )
            self._free -= granted
            return Lease(self, granted)

    def _give_back(self, num_bytes: int) -> None:
        with self._lock:
            self._free += num_bytes


@dataclass(slots=True)
class Lease:
    """A part of a budget."""

    _budget: KVBudget
    num_bytes: int

    def close(self) -> None:
        """Gives it back. Calling it twice is allowed."""
        self._budget._give_back(self.num_bytes)
        self.num_bytes = 0
