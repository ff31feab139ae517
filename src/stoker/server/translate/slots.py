"""Saving and restoring slots in llama-server's words. It touches neither a file nor a connection."""

from __future__ import annotations

from typing import Literal

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime, SavesSlots
from stoker.server.wire.native import RestoredSlot, RestoreTimings, SavedSlot, SaveTimings, SlotFileRequest


async def file_slot(
    runtime: Runtime, slot: int, action: Literal["save", "restore"], wire: SlotFileRequest
) -> SavedSlot | RestoredSlot:
    """Does it, and says what was done.

    Raises:
        InvalidInput: there is no name for the file, or it is none that can be had.
        UnsupportedParameter: this runtime cannot do it.
        StokerError: see `EngineClient.save_slot`.
    """
    if wire.filename is None:
        raise InvalidInput("`filename` is missing", parameter="filename")
    if not isinstance(runtime, SavesSlots):
        raise UnsupportedParameter(f"`action={action}` is not supported by how this model is run", parameter="action")
    if action == "save":
        filed = await runtime.save_slot(slot, wire.filename)
        return SavedSlot(
            id_slot=slot,
            filename=wire.filename,
            n_saved=filed.num_tokens,
            n_written=filed.num_bytes,
            timings=SaveTimings(1e3 * filed.seconds),
        )
    filed = await runtime.restore_slot(slot, wire.filename)
    return RestoredSlot(
        id_slot=slot,
        filename=wire.filename,
        n_restored=filed.num_tokens,
        n_read=filed.num_bytes,
        timings=RestoreTimings(1e3 * filed.seconds),
    )
