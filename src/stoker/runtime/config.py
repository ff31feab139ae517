"""The settings of the model registry, as values with their ranges. It reads no files and no command line."""

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
    """The settings of one model in a configuration file, in its table `[registry.models.NAME]`."""

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
    """Which models are served, how long they stay loaded, and which are unloaded to make room.

    Raises:
        InvalidInput: a value is outside its range; `fields["parameter"]` names it.
    """

    models: dict[str, ModelConfig] | None = None
    """Models of the configuration file, by name; the command line may add others."""
    models_dir: str = ""
    """Directory of .gguf files to serve, along with all pulled models."""
    alias: tuple[str, ...] = ()
    """Additional name for a model; may be repeated."""
    pin: tuple[str, ...] = ()
    """Model that is never unloaded once it is loaded; may be repeated."""
    keep_alive: tuple[str, ...] = ()
    """Time after which an idle model is unloaded, such as 10m; -1 = never. MODEL=TIME sets it for one model; may be
    repeated. Default: never; models not named on the command line: 5m."""
    models_max: int = 0
    """Maximum number of loaded models; 0 = as many as fit into memory. Default: as many as fit."""
    memory_budget: int | None = None
    """Memory limit for all models together, in MiB. Default: the free memory when the server starts."""
    kv_budget: int | None = None
    """Memory limit for the KV caches of all loaded models, in MiB, shared equally; models on the native backend lend
    each other unused memory. Default: each model plans its own."""
    autoload: bool = True
    """Load a model when a request asks for it."""
    swap_after_s: float = 5.0
    """Time for which a busy model accepts requests while another model waits for its memory, in seconds."""
    swap_after_requests: int = 64
    """Number of requests that a busy model still accepts while another model waits for its memory."""
    max_load_queue: int = 256
    """Maximum number of requests that wait for models to load; further ones are refused."""
    load_wait_s: float = 600.0
    """Maximum time that a request waits for its model to load, in seconds."""
    swap_drain_s: float = 600.0
    """Maximum time for the running requests of a model before it is unloaded, in seconds."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                message = f"`{name}` must be between {low:g} and {high:g}, not {value:g}"
                raise InvalidInput(message, parameter=name)

    @property
    def bounds(self) -> SwapBounds:
        return SwapBounds(wait_s=self.swap_after_s, max_requests=self.swap_after_requests)
