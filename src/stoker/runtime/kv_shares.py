"""Computes how large the KV pool of each model may be while models lend each other memory. Asks and changes nothing.

```
    share of A        share of B        share of C
    [ A ······ A    ] [ B           ] [ C            ]      none is short: each may fill its share
    [ A ······ A A A A A A A ] [ B ] [ C C C C C C C ]      A is short, B is idle: B keeps its least, A has the rest
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_STEP_PART = 4
"""A model that is short of memory asks for the share divided by this number more in each round."""
_HEADROOM_PART = 8
"""A model with requests asks for the share divided by this number beyond what it holds, for growing answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """How one model uses its KV pool, in bytes, with `0 < least <= share <= most`."""

    share: int
    least: int
    most: int
    limit: int
    """The present limit of the pool."""
    held: int
    """Memory that requests and finished conversations hold."""
    needed: int
    """Memory that requests need; 0 = there are no requests."""
    is_short: bool
    """Cached blocks were evicted, or a request was preempted, since the last round."""
    is_quiet: bool
    """The model has had no request for a while."""

    @property
    def as_it_is(self) -> PoolUse:
        """The use to assume of an engine that does not answer: its limit can be neither lowered nor raised."""
        limit = self.limit
        return replace(self, least=min(limit, self.share), held=limit, needed=limit, most=limit, is_short=False)

    @property
    def is_busy(self) -> bool:
        """Whether the model has requests, or had some since the last round."""
        return self.needed > 0 or self.is_short

    @property
    def wanted(self) -> int:
        """The limit that the model could make use of, in bytes."""
        if not self.is_busy:
            return min(self.held, self.most)
        used = max(self.held, self.needed)
        if self.is_short:
            return min(self.most, max(used, self.limit) + self.share // _STEP_PART)
        return min(self.most, used + self.share // _HEADROOM_PART)


def share_out(pools: Sequence[PoolUse]) -> list[int]:
    """The limit of each pool, in bytes; the sum is at most the sum of the shares.

    Each pool gets its `least`; a model with requests also gets what it wants, up to its share. Memory that is left goes
    first to requests that need more than their model's share. Then it goes to finished conversations: to those of
    models with recent requests, up to their shares; to those of models with requests; and last to all others. A model
    therefore never waits for its share, whatever other models hold.
    """
    limits = [pool.least for pool in pools]
    left = sum(pool.share for pool in pools) - sum(limits)
    for level in _LEVELS:
        left = _raise(limits, [min(level(pool), pool.most) for pool in pools], pools, left)
    return limits


_LEVELS: tuple[Callable[[PoolUse], int], ...] = (
    lambda of: min(of.wanted, of.share) if of.is_busy else 0,
    lambda of: of.needed,
    lambda of: 0 if of.is_quiet else min(of.held, of.share),
    lambda of: of.wanted if of.is_busy else 0,
    lambda of: min(of.held, of.share),
    lambda of: of.held,
    lambda of: of.share,
)


def _raise(limits: list[int], goals: Sequence[int], pools: Sequence[PoolUse], left: int) -> int:
    """Raises each limit to its goal, or in proportion to the shares if memory does not suffice; returns the rest."""
    wanting = {i for i, goal in enumerate(goals) if goal > limits[i]}
    while wanting and left > 0:
        total = sum(pools[i].share for i in wanting)
        parts = {i: min(goals[i] - limits[i], left * pools[i].share // total) for i in wanting}
        sated = {i for i in wanting if parts[i] == goals[i] - limits[i]}
        for i in sated or wanting:
            limits[i] += parts[i]
            left -= parts[i]
        wanting = wanting - sated if sated else set[int]()
    return left
