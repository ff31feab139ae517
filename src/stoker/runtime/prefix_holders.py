"""Finds out which replicas have the leading keys of a prompt, without asking every replica. It holds no keys itself.

Sets of replicas are integers, with a bit for each replica's number:

```
                 k0        k1        k2        keys of a prompt
replica 0        x         x         x         ──►  3 leading keys:  0b0001
replica 1        x         x                   ──►  2 leading keys:  0b1010
replica 2                  x                        (none)
replica 3        x         x
```
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", int, bytes)

NARROW = 16
"""Number of replicas up to which each of them is asked."""
MAX_REMEMBERED = 4096
"""Maximum number of keys whose replicas are remembered: about 0.5 MiB with 1,000 replicas."""


def numbers_in(replicas: int) -> Iterator[int]:
    """The numbers of the replicas of a set, in ascending order."""
    while replicas:
        lowest = replicas & -replicas
        yield lowest.bit_length() - 1
        replicas ^= lowest


class PrefixHolders(Generic[K]):
    """Groups replicas by their number of leading keys.

    The replicas that have a key are looked up once for all of them, if many replicas have all keys before it. They are
    remembered, so the caller reports every change with `note` or `review`.

    Args:
        count: the number of leading keys that a replica has, if it has those before an index.
        having: all replicas that have a key.
    """

    def __init__(self, count: Callable[[int, Sequence[K], int], int], having: Callable[[K], int]) -> None:
        self._count = count
        self._having = having
        self._known: OrderedDict[K, int] = OrderedDict()

    def groups(self, keys: Sequence[K], among: int) -> list[tuple[int, int]]:
        """Pairs of a number of leading keys, at least 1, and the replicas that have that number. Each occurs once.

        Args:
            keys: of the prompt, in order.
            among: the set of replicas to look at.
        """
        found: list[tuple[int, int]] = []
        for length, key in enumerate(keys):
            if among.bit_count() <= NARROW:
                counts = ((self._count(number, keys, length), 1 << number) for number in numbers_in(among))
                return found + [pair for pair in counts if pair[0]]
            having = among & self._all_having(key)
            if length and having != among:
                found.append((length, among ^ having))
            among = having
        return [*found, (len(keys), among)] if among and keys else found

    def note(self, replica: int, key: K, *, has: bool) -> None:
        """Notes that a replica has a key from now on, or has it no more."""
        replicas = self._known.get(key)
        if replicas is not None:
            bit = 1 << replica
            self._known[key] = replicas | bit if has else replicas & ~bit

    def review(self, replica: int, has: Callable[[K], bool]) -> None:
        """Notes that all keys of a replica may have changed."""
        for key in self._known:
            self.note(replica, key, has=has(key))

    def _all_having(self, key: K) -> int:
        replicas = self._known.get(key)
        if replicas is None:
            replicas = self._known[key] = self._having(key)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return replicas
