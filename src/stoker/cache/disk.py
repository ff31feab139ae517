"""The disk tier: a thread that writes offered blocks, reads wanted blocks, and cleans up. Only `close` waits for it.

```
any thread     offer ──► [to write] ─┐
               want ───► [to read] ──┴► disk thread ──► borrow, write      the block comes from the RAM tier
                                                   └──► read, deliver      damaged blocks are not delivered
```

Reads come first, because requests wait for them. Writes wait for an idle engine, but not for long: a core that writes
delays all cores that compute with it. After the start, the most recently used blocks are read ahead into RAM in spare
time, for conversations that continue after a restart. Maintenance of the folder comes last. Blocks that cannot be
written are not kept, and blocks that cannot be read are computed. A broken or full disk only causes a warning.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import TypeAlias

from stoker.cache.block_file import BadBlockFile
from stoker.cache.counters import DiskCounters
from stoker.cache.directory import KeptModel
from stoker.cache.disk_queues import Backlog, ReadAhead, Uses, Wanted
from stoker.cache.place import BlockPlace
from stoker.core.tiers import KVBytes

logger = logging.getLogger(__name__)

WAIT_S = 3.0
"""Seconds after which a request computes the KV instead of waiting for a block from disk."""
_RETRY_S = 30.0
"""Seconds without writes after a failed write."""
_CHORE_S = 30.0
"""Seconds after a chore (maintenance of the folder) until another is done even while the engine computes."""
_REFRESH_REST = 100.0
"""Minimum rest between two searches, as a multiple of a search's duration: there may be many files."""
_FILES_AT_A_TIME = 64
_ANNOUNCED = 16
"""Number of wanted blocks that are announced to the place before they are read, so that an object store prefetches."""
_WRITE_WITHIN_S = 2.0
"""Seconds that an offered block may wait for an idle engine: a killed process loses the KV of that time at most."""
MAX_BACKLOG_BYTES = 256 * 2**20
"""Maximum size of the blocks that wait to be written: an ordinary disk can write them while the store is closed."""
_QUIET_S = 0.05
"""Seconds without a step after which the engine counts as idle: the next request may follow at once."""
_STEP_S = 1.0
"""Seconds after which a step counts as ended, even if its end was not reported."""
_END_S = 1.0
"""Additional seconds for the block that the thread reads or writes when it must end."""
_SLACK = 16
"""The folder is shrunk by one part in this number of its limit at once: listing files is too slow for each write."""
_NICE = 10
"""Increment of a thread's nice value by `give_way`: its priority is lower than that of computing threads (Linux)."""

Borrow: TypeAlias = Callable[[bytes], KVBytes | None]
Deliver: TypeAlias = Callable[[bytes, KVBytes], None]
DeliverAhead: TypeAlias = Callable[[bytes, KVBytes], bool]


class DiskTier:
    """Blocks of one model in a place that other processes may use, too. Any thread may call any method.

    Args:
        directory: the place of the blocks: a folder, or an object store.
        identify: returns the model's fingerprint; may read all weights, so a thread of the tier calls it.
        model: description of the fingerprint, for people.
        limit_bytes: maximum size of the folder, for all models and processes together.
        borrow: returns an offered block, or None if it is gone; called by the disk thread.
        deliver: takes a block that was read; called by the disk thread.
        arrived: called by the disk thread when all blocks of a request have been delivered, or some cannot be.
        deliver_ahead: takes a block that no request has asked for; False = there is no room. Called by the disk thread.
        read_ahead_bytes: maximum size of the recently used blocks that are read after the start.
        backlog_bytes: maximum size of waiting blocks; beyond it, the oldest are written even while the engine computes.
        clock: returns seconds; only differences count.
    """

    def __init__(
        self,
        directory: BlockPlace,
        *,
        identify: Callable[[], bytes],
        model: KeptModel,
        limit_bytes: int,
        borrow: Borrow,
        deliver: Deliver,
        arrived: Callable[[], None],
        deliver_ahead: DeliverAhead = lambda key, state: False,
        read_ahead_bytes: int = 0,
        backlog_bytes: int = MAX_BACKLOG_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.counters = DiskCounters()
        self._directory = directory
        self._identify = identify
        self._model = model
        self._borrow = borrow
        self._deliver = deliver
        self._arrived = arrived
        self._deliver_ahead = deliver_ahead
        self._read_ahead_bytes = read_ahead_bytes
        self._clock = clock
        self._changed = threading.Condition()
        """Guards everything below; notified when there is something to do."""
        self._index: dict[bytes, int] = {}
        """Known blocks of this model on disk, with the sizes of their files."""
        self._to_write = Backlog(_WRITE_WITHIN_S, backlog_bytes)
        """Bounded by the size of the RAM tier, which reports evicted blocks: see `forget`."""
        self._to_read = Wanted()
        self._uses = Uses()
        self._ahead = ReadAhead()
        self._paused_until = 0.0
        self._is_used = False
        """A request has arrived. KV computed before the first one belongs to the warm-up, and is not kept."""
        self._quiet_from = -inf
        """Time from which the engine counts as idle, unless a step begins before."""
        self._chore_at = self._clock()
        """Time of the last chore."""
        self._closes_at: float | None = None
        self._fingerprint = b""
        self._num_unswept_bytes = 0
        self._has_warned = False
        self._refresh_s = directory.search_s
        self._looked_at = self._clock()
        self._seen_state: int | None = None
        """State of the folder when it was last searched."""
        self._sweep: Iterator[tuple[Path, str]] | None = None
        """The clean-up after the start, until it ends."""
        self._thread = threading.Thread(target=self._run, name="stoker-kv-disk", daemon=True)
        self._thread.start()

    @property
    def num_blocks(self) -> int:
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        with self._changed:
            return sum(self._index.values())

    def holds(self, key: bytes) -> bool:
        """The block is on disk, or about to be."""
        with self._changed:
            return key in self._index or key in self._to_write

    def offer(self, key: bytes, num_bytes: int) -> None:
        """Queues a block to be written soon; `borrow` must return it until then, or `forget` be called."""
        with self._changed:
            if key not in self._index and self._thread.is_alive():
                now, was_at = self._clock(), self._write_at
                self._to_write.add(key, num_bytes, now)
                if self._write_at < was_at:  # else the thread wakes up in time anyway
                    self._changed.notify_all()

    def forget(self, keys: Iterable[bytes]) -> int:
        """Notes that these blocks cannot be borrowed any more; returns the number of those not yet written."""
        with self._changed:
            return sum(self._to_write.discard(key) for key in keys)

    def want(self, keys: Sequence[bytes]) -> None:
        """Queues these blocks to be read in order, as far as they are on disk."""
        with self._changed:
            until = self._clock() + WAIT_S
            self._to_read.add([key for key in keys if key in self._index], until)
            self._changed.notify_all()

    def note_uses(self, keys: Iterable[bytes]) -> None:
        """Notes that a request will use these blocks, from RAM or disk: they are removed from the folder last."""
        with self._changed:
            now, had_some = self._clock(), bool(self._uses)
            self._is_used, self._quiet_from = True, now + _STEP_S
            self._uses.note(keys, self._index, now, time.time())
            if self._uses and not had_some:
                self._changed.notify_all()

    def note_step(self, *, is_busy: bool) -> None:
        """Notes whether the engine computes: read-ahead and chores wait until it is idle."""
        if self._is_used:
            was_quiet_from, self._quiet_from = self._quiet_from, self._clock() + (_STEP_S if is_busy else _QUIET_S)
            if self._quiet_from < was_quiet_from:
                with self._changed:
                    self._changed.notify_all()

    def is_coming(self, keys: Iterable[bytes]) -> bool:
        """One of these blocks is still wanted, and may still arrive."""
        with self._changed:
            return self._to_read.is_any_coming(keys, self._clock())

    def read_s(self, keys: Sequence[bytes]) -> float:
        """Estimated time to read these blocks, from earlier reads; 0 = nothing was read yet."""
        counters = self.counters
        if not counters.read_bytes:
            return 0.0
        with self._changed:
            num_bytes = sum(self._index.get(key, 0) for key in keys)
        return num_bytes * counters.read_s / counters.read_bytes

    def close(self, timeout_s: float) -> bool:
        """Writes the offered blocks within a time limit. False if the thread is stuck in a slow disk."""
        with self._changed:
            self._closes_at = self._clock() + timeout_s
            self._to_read.clear()
            self._changed.notify_all()
        self._thread.join(timeout_s + _END_S)
        if self._thread.is_alive() and not self._fingerprint:
            logger.warning("the model was closed before its weights were identified: its KV is not kept on disk")
            return True
        return not self._thread.is_alive()

    def _run(self) -> None:
        # Only reading the weights has a low thread priority; requests wait for the blocks that this thread reads.
        opening = threading.Thread(target=self._open, name="stoker-kv-open", daemon=True)
        opening.start()
        opening.join()
        if not self._fingerprint:
            return
        self._refresh()
        self._ahead.extend(self._directory.latest(self._fingerprint, self._read_ahead_bytes))
        self._sweep = self._directory.sweep()
        while (job := self._next_job()) is not None:
            job()
        self._directory.close()

    def _next_job(self) -> Callable[[], None] | None:
        """Waits for the next job of the thread. None: the thread must end."""
        with self._changed:
            while True:
                now = self._clock()
                if self._to_read:
                    return partial(self._read, self._to_read.first)
                write_at, is_closing = self._write_at, self._closes_at is not None
                if self._closes_at is not None and (now >= self._closes_at or not (now >= write_at or self._uses)):
                    return None
                if now >= write_at:
                    return partial(self._write, self._to_write.oldest)
                # Scanning takes at most a hundredth of the time, so it does not wait for an idle engine.
                look_at = inf if is_closing else self._looked_at + self._refresh_s
                if now >= look_at:
                    return self._refresh
                ahead_at, chore = self._ahead.at(self._quiet_from), self._chore()
                if now >= ahead_at and not is_closing:
                    return partial(self._read_ahead, self._ahead.take())
                chore_at = inf if chore is None else min(self._quiet_from, self._chore_at + _CHORE_S)
                if chore is not None and (now >= chore_at or is_closing):
                    return partial(self._do_chore, chore)
                wake_at = min(write_at, ahead_at, look_at, chore_at)
                self._changed.wait(None if wake_at == inf else wake_at - now)

    def _chore(self) -> Callable[[], None] | None:
        """The next maintenance job of the folder, for which no request waits; None = there is none."""
        if self._uses:
            return self._note_uses
        return self._sweep_on if self._sweep is not None and not self._ahead.is_urgent else None

    def _do_chore(self, chore: Callable[[], None]) -> None:
        chore()
        self._chore_at = self._clock()

    @property
    def _write_at(self) -> float:
        """Time from which the next block may be written; infinity = no block waits."""
        if not self._to_write:
            return inf
        can_wait = self._closes_at is None
        return max(self._paused_until, min(self._quiet_from, self._to_write.due_at) if can_wait else -inf)

    def _open(self) -> None:
        """Determines the model's fingerprint; without it, the disk tier stays unused."""
        give_way()
        try:
            fingerprint = self._identify()
            self._directory.describe(fingerprint, self._model)
        except OSError as error:
            logger.warning("the cache on disk cannot be used: %s", error)
            with self._changed:
                self._to_write.clear()
                self._to_read.clear()
        else:
            self._fingerprint = fingerprint

    def _sweep_on(self) -> None:
        """Checks a few more files of the folder; a request's read may come between two such portions."""
        assert self._sweep is not None
        looked_at = list(islice(self._sweep, _FILES_AT_A_TIME))
        for path, fault in looked_at:
            if fault:
                self.counters.bad_files += 1
                self._warn("%s in the cache on disk cannot be used: %s; it is removed", path, fault)
        if len(looked_at) < _FILES_AT_A_TIME:
            self._sweep = None
            self._shrink()
            self._refresh()

    def _refresh(self) -> None:
        self._looked_at = self._clock()
        state = self._directory.state(self._fingerprint)
        if state is not None and state == self._seen_state:
            return
        began, self._seen_state = self._clock(), state
        found = self._directory.keys(self._fingerprint, self._index)
        self._refresh_s = max(self._directory.search_s, _REFRESH_REST * (self._clock() - began))
        with self._changed:
            self._index = found
            self._to_write.discard_all(found)

    def _read(self, key: bytes) -> None:
        with self._changed:
            is_late = self._to_read.is_late(key, self._clock())
            soon = [] if is_late else self._to_read.next(_ANNOUNCED)
        self._directory.begin(self._fingerprint, soon)
        state = None if is_late else self._load(key)
        if state is not None:
            self._deliver(key, state)
        with self._changed:
            is_last = self._to_read.discard(key)
        if is_last or state is None:
            self._arrived()

    def _read_ahead(self, key: bytes) -> None:
        """Reads a block ahead into memory, and stops reading ahead when there is no more room."""
        if self._borrow(key) is not None:
            return
        began, state = time.thread_time(), self._load(key)
        if state is not None and self._deliver_ahead(key, state):
            self.counters.read_ahead_blocks += 1
        elif state is not None:
            self._ahead.clear()
        self._ahead.note(len(state or b""), time.thread_time() - began, self._clock())

    def _note_uses(self) -> None:
        with self._changed:
            used = self._uses.take(_FILES_AT_A_TIME)
        for key, used_at in used:
            self._directory.note_use(self._fingerprint, key, used_at)

    def _load(self, key: bytes) -> KVBytes | None:
        began = self._clock()
        try:
            state = self._directory.read(self._fingerprint, key)
        except (BadBlockFile, OSError) as error:
            with self._changed:
                self._index.pop(key, None)
            if not isinstance(error, FileNotFoundError):  # else another process has cleaned up
                self.counters.bad_files += 1
                self._directory.remove(self._fingerprint, key)
                self._warn("a block of the cache on disk cannot be used: %s; it is removed", error)
            return None
        self.counters.read_bytes += len(state)
        self.counters.read_s += self._clock() - began
        return state

    def _write(self, key: bytes) -> None:
        state = self._borrow(key)
        num_bytes = None if state is None else self._store(key, state)
        with self._changed:
            if num_bytes is None and state is not None:
                return  # the block stays in the queue for the next attempt
            self._to_write.discard(key)
            if num_bytes is not None:
                self._index[key] = num_bytes
                self._uses.note_written(key)
        if num_bytes is not None:
            self._num_unswept_bytes += num_bytes
            if self._num_unswept_bytes * _SLACK >= self.limit_bytes:
                while self._uses:  # so that blocks in use are not removed because their use was not yet noted
                    self._note_uses()
                self._shrink()

    def _store(self, key: bytes, state: KVBytes) -> int | None:
        began = self._clock()
        try:
            num_bytes = self._directory.write(self._fingerprint, key, state)
            # Another process may have cleared the folder meanwhile.
            self._directory.describe(self._fingerprint, self._model)
        except OSError as error:
            self.counters.failed_writes += 1
            self._warn("the cache on disk cannot be written to: %s; conversations are kept in memory only", error)
            with self._changed:
                self._paused_until = self._clock() + _RETRY_S
            return None
        self.counters.written_bytes += num_bytes
        self.counters.write_s += self._clock() - began
        return num_bytes

    def _shrink(self) -> None:
        self._num_unswept_bytes = 0
        removed = self._directory.shrink(self.limit_bytes - self.limit_bytes // _SLACK)
        self.counters.evicted_blocks += len(removed)
        with self._changed:
            for entry in removed:
                if entry.folder.endswith(self._fingerprint.hex()):
                    self._index.pop(entry.key, None)

    def _warn(self, message: str, *args: object) -> None:
        """Logs the first failure as a warning, later ones at debug level: a full or damaged disk usually stays so."""
        logger.log(logging.DEBUG if self._has_warned else logging.WARNING, message, *args)
        self._has_warned = True


def give_way() -> None:
    """Lowers the calling thread's scheduling priority, where threads have their own (Linux).

    Threads that wait for a lock of this one wait longer; this one still gets a tenth of a fully used core.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)
