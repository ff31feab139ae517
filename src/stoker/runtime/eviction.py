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


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a candidate has had while another model waits for its memory."""

    since: float
    """When the other one was asked for, or when the candidate was loaded, whichever is later."""
    num_requests: int
    """That the candidate was given since then."""


def choose_victims(
    candidates: Sequence[Candidate], *, num_bytes: int, num_places: int = 0
) -> tuple[Candidate, ...] | None:
    """The fewest models that free enough: idle ones first, then the least recently used.

    Args:
        candidates: all models that may be unloaded.
        num_bytes: that are missing; below 1 = none are.
        num_places: how many models must leave, whatever their size.

    Returns:
        None: not even all of them free enough.
    """
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (not c.is_idle, c.used_at)):
        if _is_enough(chosen, num_bytes, num_places):
            break
        chosen.append(candidate)
    if not _is_enough(chosen, num_bytes, num_places):
        return None
    for candidate in reversed(chosen[:]):
        without = [other for other in chosen if other is not candidate]
        if _is_enough(without, num_bytes, num_places):
            chosen = without
    return tuple(chosen)


def _is_enough(chosen: Sequence[Candidate], num_bytes: int, num_places: int) -> bool:
    return sum(candidate.num_bytes for candidate in chosen) >= num_bytes and len(chosen) >= num_places


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
