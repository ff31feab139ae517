"""Saves slots to files and restores them: the engine's thread copies KV, and the calling thread reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol, TypeVar

from stoker.backends.base import Backend, KVPort
from stoker.cache.slot_files import SlotFiles, SlotImage, take_memory
from stoker.core.scheduler import Scheduler
from stoker.engine.adapters import Adapters
from stoker.engine.question_messages import RestoreSlot, SaveSlot, SlotFiled
from stoker.errors import BackendError, InvalidInput, ModelNotLoaded, ResourceExhausted, UnsupportedParameter

_CALL_S = 50.0
"""Maximum wait for the engine's thread, in seconds; the client of the question waits a little longer."""

T = TypeVar("T")


class SlotPort:
    """Exports and restores an engine's slots. The engine's thread calls it between two steps.

    Args:
        backend: computes the scheduler's batches.
        port: the same object as `backend`.
        scheduler: owns the slots.
        adapters: the loaded LoRA adapters.
    """

    def __init__(self, backend: Backend, port: KVPort, scheduler: Scheduler, adapters: Adapters) -> None:
        self._backend = backend
        self._port = port
        self._scheduler = scheduler
        self._adapters = adapters

    def export(self, slot: int) -> SlotImage:
        """A copy of the KV that a finished conversation left in a slot. The slot does not change.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, it is empty, or its KV is private.
            ResourceExhausted: there is not enough memory for a copy.
            BackendError: the KV cannot be exported.
        """
        entries, adapters = self._scheduler.slots.left_in(slot)
        try:
            state = self._port.export_kv(slot, 0, len(entries), take_memory)
        except MemoryError as error:
            raise ResourceExhausted(f"there is no memory for a copy of slot {slot}") from error
        return SlotImage(entries, state, adapters)

    def restore(self, slot: int, image: SlotImage) -> None:
        """Fills a slot from an image; KV that a finished conversation left in the slot is erased.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, or the image is longer than a sequence may be, or
                was computed with adapters that are not loaded.
            ResourceExhausted: running requests need the room in the KV pool.
            BackendError: the KV cannot be imported; the slot is then empty.
        """
        if not self._adapters.has_all(image.adapters):
            message = "it was computed with LoRA adapters that are not loaded here; load the same files first"
            raise InvalidInput(message, parameter="filename")
        batch = self._scheduler.slots.vacate_for(slot, image.entries, image.key)
        try:
            self._backend.forward(batch)
        except BackendError:
            self._scheduler.fail(batch)
            raise
        self._port.import_kv(slot, 0, len(image.entries), image.state)
        self._scheduler.slots.adopt(slot, image.entries, image.adapters)


class EngineThread(Protocol):
    """Runs calls on the thread that owns the slots."""

    def perform(self, work: Callable[[], T]) -> Future[T]: ...


def file_slot(
    question: SaveSlot | RestoreSlot, files: SlotFiles | None, port: SlotPort | None, thread: EngineThread
) -> SlotFiled:
    """Saves or restores a slot. Waits for the disk and for the engine's thread.

    Raises:
        UnsupportedParameter: the server has no folder for slots, or the backend cannot export KV.
        StokerError: see `SlotFiles` and `SlotPort`.
    """
    if files is None:
        message = "saving and restoring slots is turned off: start the server with --slot-save-path FOLDER"
        raise UnsupportedParameter(message, parameter="action")
    if port is None:
        raise UnsupportedParameter("this model's backend cannot export its KV cache", parameter="action")
    began = time.monotonic()
    if isinstance(question, SaveSlot):
        image = _await_call(thread.perform(partial(port.export, question.slot)))
        num_bytes = files.write(question.filename, image)
    else:
        image, num_bytes = files.read(question.filename)
        _await_call(thread.perform(partial(port.restore, question.slot, image)))
    return SlotFiled(question.question_id, len(image.entries), num_bytes, time.monotonic() - began)


def _await_call(call: Future[T]) -> T:
    try:
        return call.result(_CALL_S)
    except TimeoutError:
        call.cancel()
        raise ModelNotLoaded("the engine is busy with a very long step", retry_after_s=_CALL_S) from None
