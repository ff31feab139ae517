"""Lists, erases, saves and restores the slots of llama-server, whose KV holds conversations."""

from __future__ import annotations

import time

from stoker.core.slot_state import SlotState
from stoker.engine.question_messages import Erased, EraseSlots, ListSlots, RestoreSlot, SaveSlot, SlotFiled, SlotList
from stoker.errors import InvalidInput
from stoker.runtime.external.client import ServerClient, decode
from stoker.runtime.llama_server.wire import ErasedSlot, RestoredSlot, SavedSlot, Slot

_FILE_S = 300.0
_ANSWER_S = 60.0
"""Timeout in seconds: llama-server answers only between two batches, and a batch may take long."""


class Slots:
    """The slots of one llama-server, as last listed. Counts are in tokens."""

    def __init__(self) -> None:
        self.num_retained = 0
        """Tokens of finished conversations that the slots hold."""

    async def look(self, client: ServerClient, timeout_s: float = _ANSWER_S) -> list[SlotState]:
        """The present state of every slot.

        Raises:
            BrokenOff: the server is gone.
            StokerError: the server did not answer within `timeout_s` seconds, or answered with an error.
        """
        slots = decode(await client.get("/slots", timeout_s), list[Slot], "llama-server's slots")
        states = [_state(slot) for slot in slots]
        self.num_retained = sum(state.num_tokens for state in states if state.request_id is None)
        return states

    async def answer(
        self, question: ListSlots | EraseSlots | SaveSlot | RestoreSlot, client: ServerClient
    ) -> SlotList | Erased | SlotFiled:
        """The answer to a question about slots. Saved files have llama-server's format, which only it can read.

        Raises:
            InvalidInput: the slot does not exist, runs a request, or has nothing to save; or the file does not exist,
                is damaged, belongs to another model, or has an invalid name.
            StokerError: see `look`.
        """
        states = await self.look(client)
        match question:
            case ListSlots():
                return SlotList(question.question_id, states)
            case EraseSlots():
                idle = [state.slot for state in states if state.request_id is None]
                chosen = idle if question.slot is None else [_idle(states, question.slot)]
                return Erased(question.question_id, sum([await self._erase(client, slot) for slot in chosen]))
            case SaveSlot():
                return await self._save(client, question, _idle(states, question.slot))
            case RestoreSlot():
                return await self._restore(client, question, _idle(states, question.slot))

    async def _save(self, client: ServerClient, question: SaveSlot, slot: int) -> SlotFiled:
        began = time.monotonic()
        body = await client.post(f"/slots/{slot}?action=save", {"filename": question.filename}, _FILE_S)
        saved = decode(body, SavedSlot, "llama-server's saved slot")
        if not saved.n_saved:
            raise InvalidInput(f"there is nothing in slot {slot}", parameter="slot")
        return SlotFiled(question.question_id, saved.n_saved, saved.n_written, time.monotonic() - began)

    async def _restore(self, client: ServerClient, question: RestoreSlot, slot: int) -> SlotFiled:
        began = time.monotonic()
        body = await client.post(f"/slots/{slot}?action=restore", {"filename": question.filename}, _FILE_S)
        restored = decode(body, RestoredSlot, "llama-server's restored slot")
        return SlotFiled(question.question_id, restored.n_restored, restored.n_read, time.monotonic() - began)

    async def _erase(self, client: ServerClient, slot: int) -> int:
        body = await client.post(f"/slots/{slot}?action=erase", {}, _ANSWER_S)
        return decode(body, ErasedSlot, "llama-server's erased slot").n_erased


def _idle(states: list[SlotState], slot: int) -> int:
    found = next((state for state in states if state.slot == slot), None)
    if found is None:
        raise InvalidInput(f"there is no slot {slot}, only 0 to {len(states) - 1}", parameter="slot")
    if found.request_id is not None:
        raise InvalidInput(f"a request runs in slot {slot}", parameter="slot")
    return slot


def _state(slot: Slot) -> SlotState:
    """The state of a slot. A running request is identified only by llama-server's own task number."""
    if not slot.is_processing:
        return SlotState(slot=slot.id, num_tokens=slot.n_prompt_tokens)
    return SlotState(
        slot=slot.id,
        num_tokens=slot.n_prompt_tokens,
        request_id=f"task-{slot.id_task}",
        num_prompt=max(0, slot.n_prompt_tokens - slot.num_decoded),
        num_completion=slot.num_decoded,
    )
