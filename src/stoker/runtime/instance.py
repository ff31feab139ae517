"""A loaded runtime with a count of the requests that use it. What is loaded and unloaded is decided in `residency`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stoker.models.memory_plan import MemoryPlan
from stoker.runtime.served import ServedModel


class Instance:
    """A loaded runtime with a count of its users. Belongs to one event loop; its creator closes it when it is idle.

    Args:
        served: the started runtime, with its names.
        plan: the memory that it takes; None = its memory is not counted.
        clock: seconds; only differences count.
        on_idle: called when the last lease is closed.
        on_use: called when an idle instance gets its first lease.
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
        """Number of leases granted since the model was loaded."""
        self._num_leases = 0
        self._clock = clock
        self._on_idle, self._on_use = on_idle, on_use

    @property
    def num_bytes(self) -> int:
        return self.plan.total_bytes if self.plan is not None else 0

    @property
    def device_bytes(self) -> int:
        """Bytes that the runtime takes on GPUs with memory of their own."""
        return self.plan.device_bytes if self.plan is not None else 0

    @property
    def is_idle(self) -> bool:
        return self.idle.is_set()

    def lease(self) -> Lease:
        """Counts one more user, until the returned lease is closed."""
        self._num_leases += 1
        self.num_granted += 1
        self.idle.clear()
        if self._num_leases == 1 and self._on_use is not None:
            self._on_use()
        return Lease(self)

    def release(self) -> None:
        """Counts one user less; only `Lease` calls this."""
        self._num_leases -= 1
        self.used_at = self._clock()
        if self._num_leases == 0:
            self.idle.set()
            self._on_idle()


class Lease:
    """Keeps a model loaded for one request, whose handler must close it in every case."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._is_open = True

    @property
    def served(self) -> ServedModel:
        return self._instance.served

    def share(self) -> Lease:
        """A second lease on the same instance, for work that outlives this lease."""
        assert self._is_open, "a closed lease keeps nothing"
        return self._instance.lease()

    def close(self) -> None:
        """Releases the model. Calling it twice is allowed."""
        if self._is_open:
            self._is_open = False
            self._instance.release()
