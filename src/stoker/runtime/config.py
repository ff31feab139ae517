"""The settings of a server with several models; where they come from is not its business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.errors import InvalidInput
from stoker.runtime.eviction import SwapBounds

_DAY_S = 86_400.0
_RANGES: Mapping[str, tuple[float, float]] = {
    "models_max": (0, 2**16),
    "memory_budget": (1, 2**31 - 1),
    "kv_budget": (1, 2**31 - 1),
    "swap_after_s": (0, _DAY_S),
    "swap_after_requests": (1, 2**31 - 1),
    "max_load_queue": (1, 2**20),
    "load_wait_s": (0.001, _DAY_S),
    "swap_drain_s": (0.001, 7 * _DAY_S),
}


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a configuration file says about one model, in `[registry.models.NAME]`."""

    source: str = ""
    """What `stoker pull` takes, or a path. Not given: the table's name."""
    alias: tuple[str, ...] = ()
    pin: bool = False
    keep_alive: str | float = ""
    load: bool = True
    """Load it when the server starts."""
    engine: dict[str, Any] = {}
    """Keys of `[engine]` that hold for this model only."""


class RegistryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which models there are, how long they stay, and who makes room for whom.

    Raises:
        InvalidInput: a value is outside its range; `fields["parameter"]` names it.
    """

    models: dict[str, ModelConfig] | None = None
    """Those of the configuration file, by name, beside those of the command line."""
    models_dir: str = ""
    """Folder whose .gguf files can be asked for, and with them all models that `stoker pull` has brought."""
    alias: tuple[str, ...] = ()
    """Further names, each as `NAME=MODEL`."""
    pin: tuple[str, ...] = ()
    """Models that stay, once loaded."""
    keep_alive: tuple[str, ...] = ()
    """How long a model stays without a request: a duration for all, or `MODEL=DURATION`."""
    models_max: int = 0
    """Most models that are loaded at the same time, whatever their size; 0 = memory decides."""
    memory_budget: int | None = None
    """MiB that all models together may plan to take. Not given: what is free when the server starts."""
    kv_budget: int | None = None
    """MiB that the KV pools of all loaded models together take at most. Not given: each plans for itself."""
    autoload: bool = True
    """A request for a model that is not loaded loads it."""
    swap_after_s: float = 5.0
    """So long a model that is in use goes on taking requests while another one waits for its memory."""
    swap_after_requests: int = 64
    """And at most so many requests."""
    max_load_queue: int = 256
    """Most requests that wait for models to be loaded; one more is refused."""
    load_wait_s: float = 600.0
    """Longest time that a request waits for its model to be loaded."""
    swap_drain_s: float = 600.0
    """How long the requests of a model that is to be unloaded may go on."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                message = f"`{name}` must be between {low:g} and {high:g}, not {value:g}"
                raise InvalidInput(message, parameter=name)

    @property
    def bounds(self) -> SwapBounds:
        return SwapBounds(wait_s=self.swap_after_s, max_requests=self.swap_after_requests)
