"""Copies KV between the backend and the RAM and disk tiers, on the engine's thread. The scheduler decides which KV."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from stoker.backends.base import KVPort
from stoker.cache.counters import TierCounters
from stoker.cache.store import KVStore
from stoker.core.batch import Batch, Transfer
from stoker.core.scheduler import Scheduler
from stoker.errors import BackendError

logger = logging.getLogger(__name__)


class NoTransfers:
    """In place of `Transfers` if there are no tiers, or the backend cannot export KV."""

    has_work = False

    def on_arrival(self, call: Callable[[], None]) -> None:
        """Nothing arrives."""

    def export(self) -> bool:
        """Exports nothing."""
        return False

    def restore(self, batch: Batch) -> None:
        """Restores nothing: without tiers, no batch has imports."""

    def clear(self) -> None:
        """Clears nothing."""

    def memory_keys(self, known: int) -> tuple[int, set[bytes] | None]:
        """There is no RAM tier, so no block is in it."""
        return 0, None if known == 0 else set()

    def counters(self) -> TierCounters:
        """All zero."""
        return TierCounters()

    def close(self) -> None:
        """Ends nothing."""


class Transfers:
    """Copies KV between the pool and the tiers. A failed transfer costs a recomputation, never an answer.

    Args:
        port: exports and imports KV of the engine's backend.
        store: the tiers; `close` closes them.
        scheduler: notified of failed transfers and of the durations of transfers.
        clock: seconds; only differences count.
    """

    def __init__(
        self, port: KVPort, store: KVStore, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._port = port
        self._store = store
        self._scheduler = scheduler
        self._clock = clock
        self.has_work = False
        """KV may be due for export."""
        self._num_exported = self._num_restored = 0
        self._num_failed_exports = self._num_failed_restores = 0
        self._export_s = self._restore_s = 0.0
        store.on_ahead(port.expect_kv)

    def on_arrival(self, call: Callable[[], None]) -> None:
        """See `KVStore.on_arrival`."""
        self._store.on_arrival(call)

    def export(self) -> bool:
        """Gives the tiers the KV that is due for export. Called between two steps, before another step is scheduled.

        Returns:
            The new value of `has_work`.
        """
        self._store.note_step(is_busy=self._scheduler.has_work)
        transfers = self._scheduler.exports()
        self.has_work = bool(transfers) or (not self._scheduler.has_work and self._store.prepare())
        if not transfers:
            return self.has_work
        began = self._clock()
        num_tokens = sum(transfer.num_entries for transfer in transfers if self._export(transfer))
        seconds = self._clock() - began
        self._scheduler.tiering.observe_export(num_tokens, seconds)
        self._num_exported += num_tokens
        self._export_s += seconds
        return True

    def restore(self, batch: Batch) -> None:
        """Imports the KV that a batch restores, after its forward pass and before the scheduler is updated.

        From then on, the KV that the batch computed may be exported.
        """
        self.has_work = True
        if not batch.imports:
            return
        began = self._clock()
        failed: set[int] = set()
        num_tokens = 0
        for transfer in batch.imports:
            if transfer.slot in failed:
                continue  # it would continue KV that was not restored
            if self._import(transfer):
                num_tokens += transfer.num_entries
            else:
                failed.add(transfer.slot)
                self._scheduler.withdraw(transfer)
        seconds = self._clock() - began
        self._scheduler.tiering.observe_import(num_tokens, seconds)
        self._num_restored += num_tokens
        self._restore_s += seconds

    def clear(self) -> None:
        """See `KVStore.clear`."""
        self._store.clear()

    def memory_keys(self, known: int) -> tuple[int, set[bytes] | None]:
        """See `KVStore.memory_keys`."""
        return self._store.memory_keys(known)

    def counters(self) -> TierCounters:
        """The counters of the tiers and of the transfers."""
        return replace(
            self._store.counters(),
            exported_tokens=self._num_exported,
            export_s=self._export_s,
            failed_exports=self._num_failed_exports,
            restored_tokens=self._num_restored,
            restore_s=self._restore_s,
            failed_restores=self._num_failed_restores,
        )

    def close(self) -> None:
        """Closes the tiers, and waits a bounded time for the disk's thread."""
        if not self._store.close():
            logger.error("the prefix cache on disk did not close in time; blocks that were being written are lost")

    def _export(self, transfer: Transfer) -> bool:
        try:
            state = self._port.export_kv(
                transfer.slot, transfer.start, transfer.end, self._store.take_memory, has_state=transfer.has_state
            )
        except BackendError as error:
            self._num_failed_exports += 1
            logger.warning("KV could not be exported: %s", error)
            return False
        self._store.put(transfer.key, state)
        return True

    def _import(self, transfer: Transfer) -> bool:
        state = self._store.take(transfer.key, transfer.num_entries)
        if state is None:
            return False
        try:
            self._port.import_kv(transfer.slot, transfer.start, transfer.end, state, has_state=transfer.has_state)
        except BackendError as error:
            self._num_failed_restores += 1
            self._store.discard(transfer.key)
            logger.warning("KV could not be restored, so it is computed: %s", error)
            return False
        return True
