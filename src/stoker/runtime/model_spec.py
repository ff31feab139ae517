"""What a model is before anything of it is loaded: its names, how it is loaded, and how long it stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from stoker.models.memory_plan import MemoryNeeds, MemoryPlan
from stoker.runtime.base import Runtime


def _uncounted() -> MemoryNeeds | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that can be loaded."""

    names: tuple[str, ...]
    """The first one is its id; the others are aliases."""
    make: Callable[[MemoryPlan | None], Runtime]
    """A runtime for this plan that has not been started. Called for every attempt to load."""
    measure: Callable[[], MemoryNeeds | None] = _uncounted
    """What it takes. Reads its file, on a thread of its own. None = it does not count.

    Raises:
        ModelError: the file is missing or damaged.
    """
    path: str = ""
    created: int = 0
    """Creation time in Unix seconds; 0 = unknown."""
    is_pinned: bool = False
    """A pinned model stays loaded, even if another model needs memory or a client asks to unload it."""
    keep_alive_s: float = inf
    """Without a request for so long it is unloaded."""
    loads_at_start: bool = False

    @property
    def model_id(self) -> str:
        return self.names[0]
