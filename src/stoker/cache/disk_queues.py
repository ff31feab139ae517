"""The four queues of the disk's thread: what to write, what to read, what to read ahead, and which uses to note.

They know no disk, no folder and no thread, and none is safe to use from several threads: `DiskTier` locks them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from math import inf

_TOGETHER_S = 0.25
"""Blocks that arrive within this time are due together: writing one soon after another costs less."""
_URGENT_BYTES = 64 * 2**20
"""How much is read ahead even during a computation, …"""
_REST = 7.0
"""… with rests this many times as long as each reading kept a core, which the computation needs too."""
FRESH_S = 60.0
"""How long a block counts as just used: a conversation that goes on is not noted with each of its turns."""
_TICK_S = 1e-6
"""Difference between the times of blocks that one request uses one after the other."""


class Backlog:
    """Blocks to write: keys with sizes, oldest first, and the time by which each must be written.

    Args:
        max_s: how long a block may wait for a moment without computation.
        max_bytes: how much may wait. Beyond it, the oldest blocks are written at once.
    """

    def __init__(self, max_s: float, max_bytes: int) -> None:
        self._max_s = max_s
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._waiting: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        """For each key the time by which the block must be written, and its size."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting

    def add(self, key: bytes, num_bytes: int, now: float) -> None:
        """Queues a block after all others, unless it waits already."""
        if key not in self._waiting:
            self._waiting[key] = now // _TOGETHER_S * _TOGETHER_S + self._max_s, num_bytes
            self._num_bytes += num_bytes

    def discard(self, key: bytes) -> bool:
        """A block does not wait any more; returns whether it did."""
        _, num_bytes = self._waiting.pop(key, (0.0, -1))
        self._num_bytes -= max(0, num_bytes)
        return num_bytes >= 0

    def discard_all(self, keys: Container[bytes]) -> None:
        """Like `discard`, for those of the blocks that wait."""
        for key in [key for key in self._waiting if key in keys]:
            self.discard(key)

    def clear(self) -> None:
        self._waiting.clear()
        self._num_bytes = 0

    @property
    def oldest(self) -> bytes:
        """The block that waits longest. Needs one that waits."""
        return next(iter(self._waiting))

    @property
    def due_at(self) -> float:
        """When the oldest block must be written, even during a computation; infinity = no block waits."""
        if not self._waiting:
            return inf
        return -inf if self._num_bytes > self._max_bytes else self._waiting[self.oldest][0]


class Wanted:
    """Blocks to read for requests that wait, in order of arrival. Bounded by the number of blocks in the folder."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._last: set[bytes] = set()
        """The last key of each request: when that block is read, the request has all of its blocks."""

    def __bool__(self) -> bool:
        return bool(self._until)

    def add(self, keys: Sequence[bytes], until: float) -> None:
        """A request waits for all of these blocks, until this time at most."""
        self._until.update(dict.fromkeys(keys, until))
        self._last.update(keys[-1:])

    def clear(self) -> None:
        self._until.clear()
        self._last.clear()

    @property
    def first(self) -> bytes:
        """The block to read next. Needs a wanted one."""
        return next(iter(self._until))

    def next(self, count: int) -> list[bytes]:
        """The blocks to read next, `first` included."""
        return list(islice(self._until, count))

    def is_late(self, key: bytes, now: float) -> bool:
        """No request waits for the block any more."""
        return self._until.get(key, 0.0) <= now

    def is_any_coming(self, keys: Iterable[bytes], now: float) -> bool:
        """Some key is queued and not past its deadline."""
        return any(not self.is_late(key, now) for key in keys)

    def discard(self, key: bytes) -> bool:
        """A block has been read, or cannot be; returns whether it is the last block of a request."""
        self._until.pop(key, None)
        is_last = key in self._last
        self._last.discard(key)
        return is_last


class ReadAhead:
    """Blocks to read before a request asks for them, the best first."""

    def __init__(self) -> None:
        self._keys: deque[bytes] = deque()
        self._rests_until = 0.0
        self._num_urgent_bytes = _URGENT_BYTES

    def extend(self, keys: Iterable[bytes]) -> None:
        self._keys.extend(keys)

    def take(self) -> bytes:
        """The next block. Needs one that is queued."""
        return self._keys.popleft()

    def clear(self) -> None:
        self._keys.clear()

    def note(self, num_bytes: int, cpu_s: float, now: float) -> None:
        """A block of `num_bytes` was read, or none (0), and kept a core for `cpu_s`."""
        self._num_urgent_bytes -= num_bytes
        self._rests_until = now + _REST * cpu_s

    @property
    def is_urgent(self) -> bool:
        """The next block may be read even during a computation."""
        return bool(self._keys) and self._num_urgent_bytes > 0

    def at(self, quiet_from: float) -> float:
        """When the next block may be read; infinity = none is queued.

        Args:
            quiet_from: when the present computation is over, if no other begins.
        """
        if not self._keys:
            return inf
        return min(self._rests_until, quiet_from) if self._num_urgent_bytes > 0 else quiet_from


class Uses:
    """Blocks that were used lately, and of which the folder is not yet told. Bounded by the blocks in the folder."""

    def __init__(self) -> None:
        self._due: dict[bytes, float] = {}
        self._fresh: set[bytes] = set()
        self._fresh_until = 0.0

    def __bool__(self) -> bool:
        """The folder is not yet told of some use."""
        return bool(self._due)

    def note(self, keys: Iterable[bytes], kept: Container[bytes], now: float, used_at: float) -> None:
        """A request uses these blocks one after the other; blocks that the folder does not keep are ignored.

        Args:
            now: on a clock of which only differences count.
            used_at: in seconds since 1970.
        """
        if now >= self._fresh_until:
            self._fresh.clear()
            self._fresh_until = now + FRESH_S
        used = [key for key in keys if key in kept and key not in self._fresh]
        self._fresh.update(used)
        self._due.update((key, used_at + index * _TICK_S) for index, key in enumerate(used))

    def note_written(self, key: bytes) -> None:
        """The folder has noted the use of this block by writing it."""
        self._fresh.add(key)

    def take(self, count: int) -> list[tuple[bytes, float]]:
        """Up to `count` uses to tell the folder of now, each with its time, oldest first."""
        taken = list(islice(self._due.items(), count))
        for key, _ in taken:
            del self._due[key]
        return taken
