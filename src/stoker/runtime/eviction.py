"""Who has to leave so that another model fits, and when. It decides; it does nothing.

```
B is asked for, and does not fit beside A

A is used, again and again          A leaves, B comes
|-----------------------------------|---------------> time
0                                   bound: `wait_s` after B was asked for (and after A was loaded),
                                    or `max_requests` for A meanwhile; sooner once A was left alone for `linger_s`
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapBounds:
    """How long a loaded model goes on being used while another one waits for its memory."""

    wait_s: float = 5.0
    max_requests: int = 64
    linger_s: float = 0.25
    """A client that asks one thing after the other is not cut off between two of them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded model that may be unloaded."""

    key: str
    num_bytes: int
    used_at: float
    """Last use before the current one, if the model is in use."""
    is_idle: bool
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Lack:
    """What has to become free before a model can be loaded; below 1 = nothing."""

    num_bytes: int
    device_bytes: int = 0
    places: int = 0
    """How many models must leave, whatever their size."""

    def __bool__(self) -> bool:
        return max(self.num_bytes, self.device_bytes, self.places) > 0

    def is_met_by(self, leaving: Sequence[Candidate]) -> bool:
        """Whether enough becomes free if these leave."""
        return (
            sum(candidate.num_bytes for candidate in leaving) >= self.num_bytes
            and sum(candidate.device_bytes for candidate in leaving) >= self.device_bytes
            and len(leaving) >= self.places
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a candidate has had while another model waits for its memory."""

    since: float
    """When the other one was asked for, or when the candidate was loaded, whichever is later."""
    num_requests: int
    """That the candidate was given since then."""


def choose_victims(candidates: Sequence[Candidate], lack: Lack) -> tuple[Candidate, ...] | None:
    """The fewest models that free enough: idle ones first, then the least recently used.

    Args:
        candidates: all models that may be unloaded.
        lack: what has to become free.

    Returns:
        None: not even all of them free enough.
    """
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (not c.is_idle, c.used_at)):
        if lack.is_met_by(chosen):
            break
        chosen.append(candidate)
    if not lack.is_met_by(chosen):
        return None
    for candidate in reversed(chosen[:]):
        without = [other for other in chosen if other is not candidate]
        if lack.is_met_by(without):
            chosen = without
    return tuple(chosen)


def has_had_enough(waiting: Waiting, bounds: SwapBounds, now: float) -> bool:
    """The bound is reached: the model takes no further requests until the other one was loaded."""
    return now >= waiting.since + bounds.wait_s or waiting.num_requests >= bounds.max_requests


def leaves_at(candidate: Candidate, waiting: Waiting, bounds: SwapBounds) -> float:
    """When a model may be unloaded, or, while it is used, when its bound is reached."""
    bound_at = waiting.since + bounds.wait_s
    if not candidate.is_idle:
        return bound_at
    if waiting.num_requests >= bounds.max_requests:
        return candidate.used_at
    return min(bound_at, candidate.used_at + bounds.linger_s)
