"""Keeps the replicas of a model in order of their load, and chooses one for a prompt. Sends nothing.

The cost of a replica is its pending work plus the tokens of the new prompt that are probably not in its prefix cache.
A replica where the prompt would wait costs more than any where it would begin at once.

```
order      (0, 120 tokens of work, …, #2)  (0, 340, …, #0)  (1, 90, …, #1)      0: begins at once, 1: would wait
matches    512 tokens: #0, #1     0 tokens: all
                        │                     │
choice         #0: 340 − 512          #2: 120 − 0         of each group, only the first in the order can be the best
```
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from stoker.runtime.prefix_holders import numbers_in

KV_FULL = 0.95
"""Fraction of the KV pool in use by running requests from which on a replica counts as full."""
_FEW = 64
"""Size up to which the members of a group are compared; the first of a larger group is soon met in the order."""
_SORTED_ANEW = 8
"""The order is sorted anew if more than one in this number of its replicas have changed."""

Matches: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of a number of prompt tokens and the set of replicas that have cached them, see `prefix_holders`. A replica may
occur several times; its largest number counts."""


def matched_by(replica: int, matches: Matches) -> int:
    """The number of prompt tokens that a replica has cached."""
    return max((tokens for tokens, replicas in matches if replicas >> replica & 1), default=0)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A replica that a request could be sent to, with what decides the choice."""

    number: int
    work: int
    """Tokens that the replica has still to compute, of prompts and answers."""
    num_open: int = 0
    """Requests at the replica, running and waiting."""
    parallel: int = 1
    """Maximum number of requests that run at the same time."""
    max_open: int = 1
    """Maximum number of requests, running and waiting; further ones are refused."""
    kv_usage: float = 0.0
    """Fraction of the KV pool that running requests hold, 0 … 1."""
    num_sent: int = 0
    """Requests ever sent to the replica."""
    rank: float = 0.0
    """Order among equals, before the number. Random where several processes route: else all would choose the same."""

    @property
    def pressure(self) -> int:
        """What happens to one more request: 0 = it begins at once, 1 = it waits in the queue, 2 = it is refused."""
        if self.num_open >= self.max_open:
            return 2
        return int(self.num_open >= self.parallel or self.kv_usage >= KV_FULL)

    @property
    def standing(self) -> Standing:
        return Standing(self.pressure, self.work, self.num_sent, self.rank, self.number)


class Standing(NamedTuple):
    """The place of a replica in the order: the smaller, the better. The fields are those of `Candidate`."""

    pressure: int
    work: int
    num_sent: int
    rank: float
    number: int


class Standings:
    """The replicas that can be asked, in order. Belongs to one event loop."""

    def __init__(self) -> None:
        self._now: dict[int, Standing] = {}
        self._order: list[Standing] = []
        self._ordered: dict[int, Standing] = {}
        """The standing of each replica that `_order` contains."""
        self._changed: set[int] = set()
        """Replicas whose standing in `_order` is not their present one."""
        self._levels = [0, 0, 0]
        """The set of replicas with each pressure."""

    def __len__(self) -> int:
        return len(self._now)

    def put(self, candidate: Candidate) -> None:
        """Adds a replica, or replaces what was known of it."""
        number, standing = candidate.number, candidate.standing
        if self._now.get(number) != standing:
            self.drop(number)
            self._now[number] = standing
            self._changed.add(number)
            self._levels[standing.pressure] |= 1 << number

    def drop(self, number: int) -> None:
        """Removes a replica, if it is there."""
        before = self._now.pop(number, None)
        if before is not None:
            self._changed.add(number)
            self._levels[before.pressure] &= ~(1 << number)

    def choose(self, matches: Matches, *, avoids: Iterable[int] = (), companion: int | None = None) -> int | None:
        """The number of the replica for a request; None if there is no replica.

        No request is routed to a replica where it has to wait while another has a free place, whatever is cached.

        Args:
            matches: how much of the prompt is cached where.
            avoids: replicas that are chosen only if there are no others.
            companion: the replica of other requests of the same group, preferred while it has a free place.
        """
        willing = ~sum(1 << number for number in {*avoids})
        levels = [level & willing for level in self._levels]
        among = next(filter(None, levels), 0) or next(filter(None, self._levels), 0)
        if companion is not None and (self._levels[0] & among) >> companion & 1:
            return companion
        self._sort()
        best = self._first(among)
        if best is None:
            return None
        for tokens, replicas in matches:
            first = self._first(replicas & among, tokens, best)
            if first is not None:
                best = min(best, first._replace(work=first.work - tokens))
        return best.number

    def _first(self, among: int, tokens: int = 0, best: Standing | None = None) -> Standing | None:
        """The first in the order of replicas with equal pressure, if it can be better than `best` with this prefix."""
        if among.bit_count() <= _FEW:
            return min((self._now[number] for number in numbers_in(among)), default=None)
        for standing in self._order:
            if among >> standing.number & 1:
                return standing
            if best is not None and (best.pressure, best.work) < (standing.pressure, standing.work - tokens):
                return None
        return None

    def _sort(self) -> None:
        """Brings `_order` up to date."""
        if len(self._changed) * _SORTED_ANEW > len(self._order):
            self._order = sorted(self._now.values())
            self._ordered = dict(self._now)
        else:
            for number in self._changed:
                self._move(number)
        self._changed.clear()

    def _move(self, number: int) -> None:
        before, now = self._ordered.pop(number, None), self._now.get(number)
        if before is not None:
            del self._order[bisect_left(self._order, before)]
        if now is not None:
            insort(self._order, now)
            self._ordered[number] = now
