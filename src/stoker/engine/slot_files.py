"""Saves and restores slots by name: the engine's thread copies, and the thread that calls this touches the disk."""

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
"""Bound of one wait for the end of a step; who asked waits a little longer."""

T = TypeVar("T")


class SlotPort:
    """What an engine's thread does to its slots, between two steps.

    Args:
        backend: computes the scheduler's batches.
        port: the same again.
        scheduler: owns the ledger of the slots.
        adapters: those that are loaded.
    """

    def __init__(self, backend: Backend, port: KVPort, scheduler: Scheduler, adapters: Adapters) -> None:
        self._backend = backend
        self._port = port
        self._scheduler = scheduler
        self._adapters = adapters

    def export(self, slot: int) -> SlotImage:
        """A copy of what a finished conversation left in a slot, which stays as it is.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, it is empty, or what it holds is private.
            ResourceExhausted: there is no memory for a copy.
            BackendError: its KV cannot be had.
        """
        entries, adapters = self._scheduler.slots.left_in(slot)
        try:
            state = self._port.export_kv(slot, 0, len(entries), take_memory)
        except MemoryError as error:
            raise ResourceExhausted(f"there is no memory for a copy of slot {slot}") from error
        return SlotImage(entries, state, adapters)

    def restore(self, slot: int, image: SlotImage) -> None:
        """Fills a slot as it was; whatever a finished conversation left in it is forgotten.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, it is longer than a sequence may be, or was
                computed with adapters that are not loaded.
            ResourceExhausted: running requests need the room.
            BackendError: the KV cannot be taken; the slot is empty.
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
    """Has something done by the thread that owns the slots."""

    def perform(self, work: Callable[[], T]) -> Future[T]: ...


def file_slot(
    question: SaveSlot | RestoreSlot, files: SlotFiles | None, port: SlotPort | None, thread: EngineThread
) -> SlotFiled:
    """Saves or restores; waits for the disk and for the engine's thread.

    Raises:
        UnsupportedParameter: the server has no folder for it, or the backend's KV cannot be had.
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
