"""`ModelSpec`: the names of a model, how to load it, and how long it stays loaded. It loads nothing itself."""

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
    """A model that a registry can load."""

    names: tuple[str, ...]
    """The first name is the model's id; the others are aliases."""
    make: Callable[[MemoryPlan | None], Runtime]
    """Makes a runtime for a memory plan, without starting it. Called for every attempt to load."""
    measure: Callable[[], MemoryNeeds | None] = _uncounted
    """Reads the memory needs from the model's file; runs on a thread. None = the model's memory is not counted.

    Raises:
        ModelError: the file is missing or damaged.
    """
    path: str = ""
    created: int = 0
    """Creation time in Unix seconds; 0 = unknown."""
    is_pinned: bool = False
    """A pinned model stays loaded, even if another model needs memory or a client asks to unload it."""
    keep_alive_s: float = inf
    """Seconds without a request after which the model is unloaded; `inf` = never."""
    loads_at_start: bool = False

    @property
    def model_id(self) -> str:
        return self.names[0]
