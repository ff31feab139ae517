"""One loaded runtime, and who uses it. It decides nothing about who comes and who goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stoker.models.memory_plan import MemoryPlan
from stoker.runtime.served import ServedModel


class Instance:
    """A loaded runtime with a count of its users. Belongs to one event loop; its creator closes it when it is idle.

    Args:
        served: the runtime, which answers already, under its names.
        plan: what it takes; None = it does not count.
        clock: seconds; only differences count.
        on_idle: called when the last user has released it.
        on_use: called when it is idle no more.
    """

    def __init__(
        self,
        served: ServedModel,
        plan: MemoryPlan | None,
        clock: Callable[[], float],
        on_idle: Callable[[], None],
        on_use: Callable[[], None] | None = None,
    ) -> None:
        self.served = served
        self.plan = plan
        self.loaded_at = self.used_at = clock()
        self.idle = asyncio.Event()
        """Set while no request uses the runtime."""
        self.idle.set()
        self.num_granted = 0
        """Leases, since it was loaded."""
        self._num_leases = 0
        self._clock = clock
        self._on_idle, self._on_use = on_idle, on_use

    @property
    def num_bytes(self) -> int:
        return self.plan.total_bytes if self.plan is not None else 0

    @property
    def device_bytes(self) -> int:
        """Memory that it takes on GPUs which have some of their own."""
        return self.plan.device_bytes if self.plan is not None else 0

    @property
    def is_idle(self) -> bool:
        return self.idle.is_set()

    def lease(self) -> Lease:
        """From now on it is used by one more."""
        self._num_leases += 1
        self.num_granted += 1
        self.idle.clear()
        if self._num_leases == 1 and self._on_use is not None:
            self._on_use()
        return Lease(self)

    def release(self) -> None:
        """By one less; only for `Lease`."""
        self._num_leases -= 1
        self.used_at = self._clock()
        if self._num_leases == 0:
            self.idle.set()
            self._on_idle()


class Lease:
    """Keeps a model loaded for one request; to be closed in every case."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._is_open = True

    @property
    def served(self) -> ServedModel:
        return self._instance.served

    def share(self) -> Lease:
        """Another one, for work that outlives this one."""
        assert self._is_open, "a closed lease keeps nothing"
        return self._instance.lease()

    def close(self) -> None:
        """Calling it twice is allowed."""
        if self._is_open:
            self._is_open = False
            self._instance.release()
