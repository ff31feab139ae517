"""The four queues of the disk tier's thread: blocks to write, to read, to read ahead, and uses of blocks to record.

They do not access any disk, and are not thread-safe: `DiskTier` locks them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from math import inf

_TOGETHER_S = 0.25
"""Blocks that arrive within this number of seconds are due together: consecutive writes cost less."""
_URGENT_BYTES = 64 * 2**20
"""Number of bytes that are read ahead even while the engine computes."""
_REST = 7.0
"""Pause after reading a block ahead while the engine computes, as a multiple of the CPU time that reading took."""
FRESH_S = 60.0
"""Seconds for which a block counts as just used, so that not every turn of a conversation is recorded."""
_TICK_S = 1e-6
"""Difference in seconds between the recorded times of consecutive blocks of one request."""


class Backlog:
    """Blocks to write: keys with sizes, oldest first, and the time by which each must be written.

    Args:
        max_s: maximum time that a block may wait for an idle engine, in seconds.
        max_bytes: maximum size of the waiting blocks; beyond it, the oldest are written at once.
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
        """Queues a block at the end, unless it is already queued."""
        if key not in self._waiting:
            self._waiting[key] = now // _TOGETHER_S * _TOGETHER_S + self._max_s, num_bytes
            self._num_bytes += num_bytes

    def discard(self, key: bytes) -> bool:
        """Removes a block from the queue; returns whether it was queued."""
        _, num_bytes = self._waiting.pop(key, (0.0, -1))
        self._num_bytes -= max(0, num_bytes)
        return num_bytes >= 0

    def discard_all(self, keys: Container[bytes]) -> None:
        """Like `discard`, for all queued blocks among `keys`."""
        for key in [key for key in self._waiting if key in keys]:
            self.discard(key)

    def clear(self) -> None:
        self._waiting.clear()
        self._num_bytes = 0

    @property
    def oldest(self) -> bytes:
        """The block that waits longest. Requires a queued block."""
        return next(iter(self._waiting))

    @property
    def due_at(self) -> float:
        """Time by which the oldest block must be written, even while the engine computes; infinity = none is queued."""
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
        """Queues the blocks of a request, which waits for them until the time `until`."""
        self._until.update(dict.fromkeys(keys, until))
        self._last.update(keys[-1:])

    def clear(self) -> None:
        self._until.clear()
        self._last.clear()

    @property
    def first(self) -> bytes:
        """The block to read next. Requires a queued block."""
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
        """Removes a block that was read or cannot be; returns whether it is the last block of a request."""
        self._until.pop(key, None)
        is_last = key in self._last
        self._last.discard(key)
        return is_last


class ReadAhead:
    """Blocks to read into RAM before a request asks for them, most recently used first."""

    def __init__(self) -> None:
        self._keys: deque[bytes] = deque()
        self._rests_until = 0.0
        self._num_urgent_bytes = _URGENT_BYTES

    def extend(self, keys: Iterable[bytes]) -> None:
        self._keys.extend(keys)

    def take(self) -> bytes:
        """Removes and returns the next block. Requires a queued block."""
        return self._keys.popleft()

    def clear(self) -> None:
        self._keys.clear()

    def note(self, num_bytes: int, cpu_s: float, now: float) -> None:
        """Notes that a block was read, or not (0 bytes), and the CPU time in seconds that it took."""
        self._num_urgent_bytes -= num_bytes
        self._rests_until = now + _REST * cpu_s

    @property
    def is_urgent(self) -> bool:
        """The next block may be read even while the engine computes."""
        return bool(self._keys) and self._num_urgent_bytes > 0

    def at(self, quiet_from: float) -> float:
        """Time from which the next block may be read; infinity = none is queued.

        Args:
            quiet_from: time from which the engine counts as idle, unless another step begins.
        """
        if not self._keys:
            return inf
        return min(self._rests_until, quiet_from) if self._num_urgent_bytes > 0 else quiet_from


class Uses:
    """Recent uses of blocks that are not yet recorded in the folder. Bounded by the number of blocks in the folder."""

    def __init__(self) -> None:
        self._due: dict[bytes, float] = {}
        self._fresh: set[bytes] = set()
        self._fresh_until = 0.0

    def __bool__(self) -> bool:
        """Whether some use is not yet recorded in the folder."""
        return bool(self._due)

    def note(self, keys: Iterable[bytes], kept: Container[bytes], now: float, used_at: float) -> None:
        """Notes that a request uses these blocks, in order. Blocks that are not in the folder are ignored.

        Args:
            kept: the blocks in the folder.
            now: time in seconds of which only differences count.
            used_at: time in seconds since 1970.
        """
        if now >= self._fresh_until:
            self._fresh.clear()
            self._fresh_until = now + FRESH_S
        used = [key for key in keys if key in kept and key not in self._fresh]
        self._fresh.update(used)
        self._due.update((key, used_at + index * _TICK_S) for index, key in enumerate(used))

    def note_written(self, key: bytes) -> None:
        """Notes that a block was written, which also records its use."""
        self._fresh.add(key)

    def take(self, count: int) -> list[tuple[bytes, float]]:
        """Removes and returns up to `count` uses to record now, each with its time, oldest first."""
        taken = list(islice(self._due.items(), count))
        for key, _ in taken:
            del self._due[key]
        return taken
