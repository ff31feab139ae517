"""How much memory the models may take, and how much of it is promised. It measures and adds; it decides nothing."""

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
    """Counts by plan, because what a loaded model has not touched yet is promised to it all the same.

    Args:
        entries: all models.
        leaving: instances that are not closed yet, and in no entry any more.
        config: `memory_budget` and `models_max`.
        available: bytes that this machine has left.
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
        """To be called before anything is loaded: what is free now is what there is."""
        self._budget = self._given * _MIB if self._given is not None else self._available()

    def free(self) -> int:
        """Free bytes that are not promised to a model."""
        reserved = sum(entry.reserved_bytes for entry in self._entries())
        promised = reserved + sum(instance.num_bytes for instance in self._instances())
        return min(self._budget - promised, self._available() - reserved)

    def learn_devices(self, needs: MemoryNeeds | None) -> None:
        """Takes what devices said when a model was measured, unless a part of it is taken by what is loaded here."""
        if needs is not None and needs.devices is not None and not self._promised_on_devices():
            self._device_budget = needs.devices.room

    def device_room(self) -> int:
        """Bytes of devices with memory of their own that are not promised to a model."""
        return self._device_budget - self._promised_on_devices()

    def _promised_on_devices(self) -> int:
        reserved = sum(entry.reserved_device_bytes for entry in self._entries())
        return reserved + sum(instance.device_bytes for instance in self._instances())

    def lack(self, needs: MemoryNeeds | None) -> Lack:
        """What has to become free before a model can be loaded as it is placed."""
        device_bytes = 0 if needs is None or not needs.device_bytes else needs.device_bytes - self.device_room()
        return Lack(self.missing(needs), device_bytes, self.missing_places())

    def missing(self, needs: MemoryNeeds | None) -> int:
        """Bytes that have to become free before a model can be loaded; 0 = none."""
        return 0 if needs is None else max(0, needs.least_bytes - self.free())

    def missing_places(self) -> int:
        """How many models must leave before another one can be loaded, whatever their size."""
        if not self._models_max:
            return 0
        loading = sum(entry.instance is None and entry.is_loading for entry in self._entries())
        return max(0, len(self._instances()) + loading + 1 - self._models_max)

    def no_room(self, entry: ModelEntry) -> ResourceExhausted:
        """The error of a model that does not fit even when all others that may be unloaded are gone."""
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
