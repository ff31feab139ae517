"""Saving and restoring slots in llama-server's words. It touches neither a file nor a connection."""

from __future__ import annotations

from typing import Literal

from stoker.engine.question_messages import RestoreSlot, SaveSlot
from stoker.errors import InvalidInput
from stoker.runtime.base import Runtime
from stoker.server.dialects.llamacpp.types import RestoredSlot, RestoreTimings, SavedSlot, SaveTimings, SlotFileRequest


async def file_slot(
    runtime: Runtime, slot: int, action: Literal["save", "restore"], wire: SlotFileRequest
) -> SavedSlot | RestoredSlot:
    """Does it, and says what was done.

    Raises:
        InvalidInput: there is no name for the file, or it is none that can be had.
        UnsupportedParameter: the server was started without a folder for it.
        StokerError: see `Runtime.ask`.
    """
    if wire.filename is None:
        raise InvalidInput("`filename` is missing", parameter="filename")
    if action == "save":
        filed = await runtime.ask(SaveSlot(slot, wire.filename))
        return SavedSlot(
            id_slot=slot,
            filename=wire.filename,
            n_saved=filed.num_tokens,
            n_written=filed.num_bytes,
            timings=SaveTimings(1e3 * filed.seconds),
        )
    filed = await runtime.ask(RestoreSlot(slot, wire.filename))
    return RestoredSlot(
        id_slot=slot,
        filename=wire.filename,
        n_restored=filed.num_tokens,
        n_read=filed.num_bytes,
        timings=RestoreTimings(1e3 * filed.seconds),
    )
