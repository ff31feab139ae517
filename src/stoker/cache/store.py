"""Combines the tiers below the KV pool: blocks of exported KV in RAM and, if configured, on disk. It decides nothing.

The engine's thread puts blocks into RAM and takes them out; only the disk tier's own thread touches the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace

from stoker.cache.arena import Arena
from stoker.cache.counters import TierCounters
from stoker.cache.directory import KeptModel
from stoker.cache.disk import MAX_BACKLOG_BYTES, DiskTier
from stoker.cache.host import HostTier
from stoker.cache.place import BlockPlace
from stoker.core.tiers import KVBytes

_CLOSE_S = 2.0
"""Maximum time in seconds for writing blocks while the store is closed."""
_BACKLOG_SHARE = 4
"""Blocks that wait to be written may take one part in this number of the RAM, so that new blocks do not evict them."""


class KVStore:
    """Blocks of exported KV by key. Satisfies `core.tiers.Tiers`; only `close` waits for a disk.

    Args:
        ram_bytes: maximum size of all blocks in RAM.
        clock: returns seconds; only differences count.
    """

    def __init__(self, ram_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the blocks in memory. May be held when the disk tier is called, never the other way round."""
        self._host = HostTier(ram_bytes)
        self._arena = Arena()
        """Allocator of the memory of exported blocks, and of blocks that are read from disk."""
        self._num_taken_bytes = 0
        """Size of the last exported block; other blocks usually have the same size."""
        self._disk: DiskTier | None = None
        self._on_arrival: Callable[[], None] | None = None
        self._on_ahead: Callable[[int], None] | None = None
        self._num_ahead_bytes = 0
        """Number of bytes read from disk before any request asked for them. Written by the disk's thread only."""
        self._num_ram_hits = self._num_disk_hits = 0
        self._num_ram_hit_tokens = self._num_disk_hit_tokens = 0
        self._num_evicted = self._num_lost = 0

    def open_disk(
        self,
        directory: BlockPlace,
        *,
        identify: Callable[[], bytes],
        model: KeptModel,
        limit_bytes: int,
        read_ahead_bytes: int = 0,
    ) -> None:
        """Adds a disk below the memory. See `DiskTier`."""
        assert self._disk is None
        self._arena = directory.arena
        self._disk = DiskTier(
            directory,
            identify=identify,
            model=model,
            limit_bytes=limit_bytes,
            borrow=self._borrow,
            deliver=self._receive,
            arrived=self._note_arrival,
            deliver_ahead=self._receive_ahead,
            read_ahead_bytes=read_ahead_bytes,
            backlog_bytes=min(self._host.limit_bytes // _BACKLOG_SHARE, MAX_BACKLOG_BYTES),
            clock=self._clock,
        )

    def on_arrival(self, call: Callable[[], None]) -> None:
        """Sets a callback for fetched blocks: called on another thread once they have arrived, or some will not."""
        self._on_arrival = call

    def on_ahead(self, call: Callable[[int], None]) -> None:
        """Sets a callback for read-ahead: called on the disk's thread with the total number of bytes read so far."""
        self._on_ahead = call

    @property
    def is_durable(self) -> bool:
        """See `Tiers`."""
        return self._disk is not None

    def holds(self, key: bytes) -> bool:
        with self._lock:
            if key in self._host:
                return True
        return self._disk is not None and self._disk.holds(key)

    def is_ready(self, key: bytes) -> bool:
        with self._lock:
            return key in self._host

    def memory_keys(self, known: int) -> tuple[int, set[bytes] | None]:
        """Number of changes to the set of blocks in RAM so far, and their keys; None if the number equals `known`."""
        with self._lock:
            count = self._host.num_changes
            return count, None if count == known else self._host.keys()

    def read_s(self, keys: Sequence[bytes]) -> float:
        return 0.0 if self._disk is None else self._disk.read_s(keys)

    def fetch(self, keys: Sequence[bytes]) -> None:
        if self._disk is not None:
            self._disk.want(keys)

    def is_coming(self, keys: Iterable[bytes]) -> bool:
        return self._disk is not None and self._disk.is_coming(keys)

    def note_step(self, *, is_busy: bool) -> None:
        """Notes whether the engine begins a step or is idle: the disk's thread leaves the CPU to steps."""
        if self._disk is not None:
            self._disk.note_step(is_busy=is_busy)

    def touch(self, keys: Iterable[bytes]) -> None:
        # In reverse order: a block must be evicted before the blocks that precede it in its sequence.
        keys = list(keys)[::-1]
        with self._lock:
            self._host.touch(keys)
        if self._disk is not None:
            self._disk.note_uses(keys)

    def take_memory(self, num_bytes: int) -> memoryview:
        """Memory for a block that will be put in; freed when its last reference is gone. See `TakeMemory`."""
        self._num_taken_bytes = num_bytes
        return self._arena.take(num_bytes)

    def prepare(self) -> bool:
        """Prepares a little memory for future blocks, while the engine is idle. False: nothing was left to do."""
        with self._lock:
            room = self._host.limit_bytes - self._host.num_bytes
        return self._num_taken_bytes > 0 and self._arena.prepare(self._num_taken_bytes, room)

    def put(self, key: bytes, state: KVBytes) -> None:
        """Stores a block in RAM, and has it written to disk. It must not change any more. Others may be evicted."""
        with self._lock:
            self._insert(key, state, is_from_disk=False)
            if self._disk is not None and key in self._host:
                self._disk.offer(key, len(state))

    def take(self, key: bytes, num_tokens: int) -> KVBytes | None:
        """The block to restore, which counts as a hit with `num_tokens` tokens; None if it was evicted meanwhile."""
        with self._lock:
            taken = self._host.take(key)
            if taken is None:
                return None
            state, is_from_disk = taken
            if is_from_disk:
                self._num_disk_hits += 1
                self._num_disk_hit_tokens += num_tokens
            else:
                self._num_ram_hits += 1
                self._num_ram_hit_tokens += num_tokens
            return state

    def discard(self, key: bytes) -> None:
        """Removes a block from RAM, for example because it could not be restored."""
        with self._lock:
            self._host.discard(key)
            if self._disk is not None:
                self._disk.forget([key])

    def clear(self) -> None:
        """Removes all blocks from RAM. Blocks on disk stay there: other processes may use them."""
        with self._lock:
            keys = self._host.clear()
            self._arena.trim()
            if self._disk is not None:
                self._disk.forget(keys)

    def counters(self) -> TierCounters:
        """The counters of both tiers. The engine adds those of exports and restores."""
        with self._lock:
            own = TierCounters(
                ram_blocks=len(self._host),
                ram_bytes=self._host.num_bytes,
                ram_limit_bytes=self._host.limit_bytes,
                ram_hit_blocks=self._num_ram_hits,
                ram_hit_tokens=self._num_ram_hit_tokens,
                ram_evicted_blocks=self._num_evicted,
                disk_hit_blocks=self._num_disk_hits,
                disk_hit_tokens=self._num_disk_hit_tokens,
                lost_blocks=self._num_lost,
            )
        disk = self._disk
        if disk is None:
            return own
        done = {f"disk_{name}": number for name, number in asdict(disk.counters).items()}
        sizes = {"disk_blocks": disk.num_blocks, "disk_bytes": disk.num_bytes, "disk_limit_bytes": disk.limit_bytes}
        return replace(own, **sizes, **done)

    def close(self) -> bool:
        """Ends the disk's thread, which may write blocks for two more seconds. False: it is stuck, and left running."""
        return self._disk is None or self._disk.close(_CLOSE_S)

    def _insert(self, key: bytes, state: KVBytes, *, is_from_disk: bool) -> None:
        evicted = self._host.put(key, state, is_from_disk=is_from_disk)
        self._num_evicted += len(evicted)
        if self._disk is not None:
            self._num_lost += self._disk.forget(evicted)

    def _borrow(self, key: bytes) -> KVBytes | None:
        with self._lock:
            return self._host.peek(key)

    def _receive(self, key: bytes, state: KVBytes) -> None:
        with self._lock:
            self._insert(key, state, is_from_disk=True)

    def _receive_ahead(self, key: bytes, state: KVBytes) -> bool:
        with self._lock:
            is_taken = self._host.put_last_in_line(key, state)
        if is_taken:
            self._num_ahead_bytes += len(state)
            if self._on_ahead is not None:
                self._on_ahead(self._num_ahead_bytes)
        return is_taken

    def _note_arrival(self) -> None:
        if self._on_arrival is not None:
            self._on_arrival()
