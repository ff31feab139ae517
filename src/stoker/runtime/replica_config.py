"""The settings of replicas: the number of engines of a model, and the thresholds of autoscaling. It decides nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from math import isfinite

from stoker.errors import InvalidInput

MAX_REPLICAS = 64
_BOUNDS = re.compile(r"(?P<low>\d{1,4})(-(?P<high>\d{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Replicas of the served model. The settings of autoscaling have no effect if the number of replicas is fixed.

    Raises:
        InvalidInput: a value is outside its range; `fields["parameter"]` names it.
    """

    replicas: int | str = 1
    """Number of engine processes for the model, 1 to 64; MIN-MAX such as 1-4 = autoscaling. They share the weights. In
    a cluster MIN may be 0."""
    scale_up_waiting: float = 5.0
    """Waiting requests per replica from which on a replica is added; must be above `scale_down_open`."""
    scale_down_open: float = 2.0
    """A replica is removed if the others would have fewer requests each, running and waiting, than this number."""
    scale_hold_s: float = 20.0
    """Seconds for which a condition to add or remove a replica must hold without a break."""
    scale_cooldown_s: float = 300.0
    """Minimum seconds from any change to the removal of a replica; in a cluster, seconds without enough requests."""

    def __post_init__(self) -> None:
        low, high = _bounds(self.replicas)
        if not (0 <= low <= high <= MAX_REPLICAS and high >= 1):
            _refuse("replicas", f"a number from 1 to {MAX_REPLICAS}, or MIN-MAX as in 1-4, not {self.replicas!r}")
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if not (isfinite(value) and value >= 0):
                _refuse(field.name, f"at least 0, not {value}")
        if self.scale_up_waiting <= self.scale_down_open:
            raise InvalidInput(
                f"`scale_up_waiting` ({self.scale_up_waiting:g}) must be above `scale_down_open` "
                f"({self.scale_down_open:g}), or the number of replicas never settles"
            )

    @property
    def min_replicas(self) -> int:
        return _bounds(self.replicas)[0]

    @property
    def max_replicas(self) -> int:
        return _bounds(self.replicas)[1]


def _bounds(text: int | str) -> tuple[int, int]:
    found = _BOUNDS.fullmatch(str(text).strip())
    if found is None:
        return -1, -1
    return int(found["low"]), int(found["high"] or found["low"])


def _refuse(name: str, what: str) -> None:
    raise InvalidInput(f"`{name}` must be {what}", parameter=name)
