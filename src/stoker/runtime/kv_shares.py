"""How large the KV pool of each model may be while models lend each other theirs. Nothing is asked or changed here.

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
"""A model that is short wants this part of its share more at a time."""
_HEADROOM_PART = 8
"""A model with requests wants this part of its share beyond what it holds: their answers grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """How one model uses its KV pool, in bytes, with `0 < least <= share <= most`."""

    share: int
    least: int
    most: int
    limit: int
    """What the pool may hold now."""
    held: int
    """By requests and finished conversations."""
    needed: int
    """By requests; 0 = there is none."""
    is_short: bool
    """Something was evicted, or a request preempted, since the last look."""
    is_quiet: bool
    """It has had no request for a while."""

    @property
    def as_it_is(self) -> PoolUse:
        """Of an engine that does not answer: nothing can be taken from it, nor can it use more."""
        limit = self.limit
        return replace(self, least=min(limit, self.share), held=limit, needed=limit, most=limit, is_short=False)

    @property
    def is_busy(self) -> bool:
        """It has requests, or had some since the last look."""
        return self.needed > 0 or self.is_short

    @property
    def wanted(self) -> int:
        """What would be of use."""
        if not self.is_busy:
            return min(self.held, self.most)
        used = max(self.held, self.needed)
        if self.is_short:
            return min(self.most, max(used, self.limit) + self.share // _STEP_PART)
        return min(self.most, used + self.share // _HEADROOM_PART)


def share_out(pools: Sequence[PoolUse]) -> list[int]:
    """The limit of each pool, in bytes; together no more than their shares.

    Each gets its `least` and, up to its share, what is wanted by a model with requests: at least what these need. What
    is left goes to requests that need more than their share, then to finished conversations: those of models that had
    requests lately, up to their shares; those of models with requests; and at last of all others. So a model never has
    to wait for its share, whatever others hold.
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
    """Raises each limit to its goal, or in proportion to shares where not enough is left; returns what is left then."""
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
