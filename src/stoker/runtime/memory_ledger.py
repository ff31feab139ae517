"""Accounts for memory: how much the models may take, and how much is promised to them. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stoker.errors import ResourceExhausted
from stoker.models.memory_plan import MemoryNeeds
from stoker.runtime.config import RegistryConfig
from stoker.runtime.entry import ModelEntry
from stoker.runtime.eviction import Lack
from stoker.runtime.instance import Instance

_MIB = 2**20


class MemoryLedger:
    """The memory account of a server. Counts memory plans: memory that a model has not touched yet is promised, too.

    Args:
        entries: returns all models.
        leaving: returns instances that are being closed, and in no entry any more.
        config: `memory_budget` and `models_max`.
        available: returns the free memory of this machine, in bytes.
    """

    def __init__(
        self,
        entries: Callable[[], Iterable[ModelEntry]],
        leaving: Callable[[], Iterable[Instance]],
        config: RegistryConfig,
        available: Callable[[], int],
    ) -> None:
        self._entries = entries
        self._leaving = leaving
        self._models_max = config.models_max
        self._given = config.memory_budget
        self._available = available
        self._budget = 0
        self._device_budget = 0

    def open(self) -> None:
        """Sets the budget: `memory_budget`, or the memory that is free now. Call it before a model is loaded."""
        self._budget = self._given * _MIB if self._given is not None else self._available()

    def free(self) -> int:
        """Free bytes that are not promised to a model."""
        reserved = sum(entry.reserved_bytes for entry in self._entries())
        promised = reserved + sum(instance.num_bytes for instance in self._instances())
        return min(self._budget - promised, self._available() - reserved)

    def learn_devices(self, needs: MemoryNeeds | None) -> None:
        """Takes the GPU memory that a measurement found free as the budget, unless loaded models occupy some of it."""
        if needs is not None and needs.devices is not None and not self._promised_on_devices():
            self._device_budget = needs.devices.room

    def device_room(self) -> int:
        """Bytes on GPUs with memory of their own that are not promised to a model."""
        return self._device_budget - self._promised_on_devices()

    def _promised_on_devices(self) -> int:
        reserved = sum(entry.reserved_device_bytes for entry in self._entries())
        return reserved + sum(instance.device_bytes for instance in self._instances())

    def lack(self, needs: MemoryNeeds | None) -> Lack:
        """What has to become free before a model with these needs can be loaded."""
        device_bytes = 0 if needs is None or not needs.device_bytes else needs.device_bytes - self.device_room()
        return Lack(self.missing(needs), device_bytes, self.missing_places())

    def missing(self, needs: MemoryNeeds | None) -> int:
        """Bytes that have to become free before a model can be loaded; 0 = none."""
        return 0 if needs is None else max(0, needs.least_bytes - self.free())

    def missing_places(self) -> int:
        """Number of models that `models_max` requires to unload before another one can be loaded."""
        if not self._models_max:
            return 0
        loading = sum(entry.instance is None and entry.is_loading for entry in self._entries())
        return max(0, len(self._instances()) + loading + 1 - self._models_max)

    def no_room(self, entry: ModelEntry) -> ResourceExhausted:
        """The error for a model that does not fit even if all models that may be unloaded are unloaded."""
        pinned = ", ".join(e.model_id for e in self._entries() if e.instance is not None and e.spec.is_pinned)
        stays = f"; {pinned} stay loaded" if pinned else ""
        if entry.needs is None or not self.missing(entry.needs):
            message = f"at most {self._models_max} models are loaded at the same time here{stays}"
            return ResourceExhausted(f"`{entry.model_id}` cannot be loaded: {message}")
        free, needed = self.free(), entry.needs.least_bytes
        message = (
            f"`{entry.model_id}` needs at least {needed // _MIB} MiB, but {max(0, free) // _MIB} MiB are free, "
            f"and no other model may be unloaded for it{stays}. A smaller --ctx-size takes less"
        )
        return ResourceExhausted(message, needed_bytes=needed, available_bytes=max(0, free))

    def _instances(self) -> list[Instance]:
        return [*(e.instance for e in self._entries() if e.instance is not None), *self._leaving()]
