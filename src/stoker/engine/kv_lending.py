"""Changes the maximum size of an engine's KV pool in bytes, and returns freed memory to the operating system."""

from __future__ import annotations

from stoker.backends.base import Backend, LendingPort
from stoker.core.scheduler import Scheduler
from stoker.engine.question_messages import KVShare, ShareKV
from stoker.errors import BackendError, UnsupportedParameter


class KVLending:
    """Answers `ShareKV` questions for one engine. The engine's thread calls it between two steps.

    Args:
        backend: computes the scheduler's batches.
        port: the same object as `backend`; None = its KV pool has a fixed size.
        scheduler: owns the KV pool.
    """

    def __init__(self, backend: Backend, port: LendingPort | None, scheduler: Scheduler) -> None:
        self._backend = backend
        self._port = port
        self._scheduler = scheduler

    def answer(self, question: ShareKV) -> KVShare:
        """Sets the limit, if the question has one, and returns how the pool is used.

        Raises:
            UnsupportedParameter: the pool has a fixed size.
            BackendError: KV that has left the pool could not be erased in the backend; the new limit holds anyway.
        """
        if self._port is None:
            raise UnsupportedParameter("the KV pool of this model has a fixed size")
        lending = self._scheduler.lending
        if question.limit is not None:
            self._set_limit(self._port, question.limit // lending.bytes_per_cell)
        size = lending.bytes_per_cell
        return KVShare(
            question.question_id,
            limit=lending.limit * size,
            share=lending.share * size,
            least=lending.least * size,
            most=lending.most * size,
            held=lending.held * size,
            needed=lending.needed * size,
            is_short=lending.take_shortage(),
        )

    def _set_limit(self, port: LendingPort, num_cells: int) -> None:
        lending = self._scheduler.lending
        is_smaller = num_cells < lending.limit
        batch = lending.set_limit(num_cells)
        if batch is not None:
            try:
                self._backend.forward(batch)
            except BackendError:
                self._scheduler.fail(batch)
                raise
        if is_smaller:
            port.give_back_kv()
