"""The eviction policy: which loaded models are unloaded so that another one fits, and when. It unloads nothing itself.

```
a request needs model B, which does not fit into memory beside A

requests keep using A               A is unloaded, B is loaded
|-----------------------------------|---------------> time
0                                   bound: `wait_s` after the request for B (and after A was loaded),
                                    or `max_requests` for A meanwhile; sooner once A was idle for `linger_s`
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapBounds:
    """How long a loaded model takes requests while another one waits for its memory."""

    wait_s: float = 5.0
    max_requests: int = 64
    linger_s: float = 0.25
    """Seconds that a model is idle before it is unloaded early, so that sequential requests are not interrupted."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded model that may be unloaded."""

    key: str
    num_bytes: int
    used_at: float
    """Time of the last use; for a model in use, of the use before the current one."""
    is_idle: bool
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Lack:
    """What has to become free before a model can be loaded. In each field, below 1 = nothing."""

    num_bytes: int
    device_bytes: int = 0
    places: int = 0
    """Number of models that must be unloaded, whatever their size."""

    def __bool__(self) -> bool:
        return max(self.num_bytes, self.device_bytes, self.places) > 0

    def is_met_by(self, leaving: Sequence[Candidate]) -> bool:
        """Whether enough becomes free if these models are unloaded."""
        return (
            sum(candidate.num_bytes for candidate in leaving) >= self.num_bytes
            and sum(candidate.device_bytes for candidate in leaving) >= self.device_bytes
            and len(leaving) >= self.places
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long, and for how many requests, a candidate stayed loaded while another model waits for its memory."""

    since: float
    """The time when the waiting model was requested or the candidate was loaded, whichever is later."""
    num_requests: int
    """Requests that the candidate got since then."""


def choose_victims(candidates: Sequence[Candidate], lack: Lack) -> tuple[Candidate, ...] | None:
    """The fewest models that free enough: idle ones first, then the least recently used.

    Args:
        candidates: all models that may be unloaded.
        lack: what has to become free.

    Returns:
        The models to unload; None if not even all candidates free enough.
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
    """Whether the bound is reached, so that the model takes no further requests until the waiting one is loaded."""
    return now >= waiting.since + bounds.wait_s or waiting.num_requests >= bounds.max_requests


def leaves_at(candidate: Candidate, waiting: Waiting, bounds: SwapBounds) -> float:
    """The time when an idle model may be unloaded; for a model in use, the time when its bound is reached."""
    bound_at = waiting.since + bounds.wait_s
    if not candidate.is_idle:
        return bound_at
    if waiting.num_requests >= bounds.max_requests:
        return candidate.used_at
    return min(bound_at, candidate.used_at + bounds.linger_s)
