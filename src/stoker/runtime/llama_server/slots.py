"""A look into llama-server's slots; forgetting, saving and restoring what they hold."""

from __future__ import annotations

import time

from stoker.core.slot_state import SlotState
from stoker.engine.question_messages import Erased, EraseSlots, ListSlots, RestoreSlot, SaveSlot, SlotFiled, SlotList
from stoker.errors import InvalidInput
from stoker.runtime.external.client import ServerClient
from stoker.runtime.llama_server.wire import ErasedSlot, RestoredSlot, SavedSlot, Slot, decode

_FILE_S = 300.0
_ANSWER_S = 60.0
"""llama-server looks between two batches, and a batch may take long."""


class Slots:
    """What they held when it was last looked. Counts are in tokens."""

    def __init__(self) -> None:
        self.num_retained = 0
        """Of finished conversations."""

    async def look(self, client: ServerClient, timeout_s: float = _ANSWER_S) -> list[SlotState]:
        """What every slot holds now.

        Raises:
            BrokenOff: the server has gone.
            StokerError: it did not answer in time, or otherwise than it should.
        """
        states = [_state(slot) for slot in decode(await client.get("/slots", timeout_s), list[Slot], "slots")]
        self.num_retained = sum(state.num_tokens for state in states if state.request_id is None)
        return states

    async def answer(
        self, question: ListSlots | EraseSlots | SaveSlot | RestoreSlot, client: ServerClient
    ) -> SlotList | Erased | SlotFiled:
        """The answer to a question about slots. Files are llama-server's, and only llama-server reads them.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, or there is nothing to save; there is no such
                file, it is another model's or damaged, or that is no name for a file.
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
        saved = decode(body, SavedSlot, "saved slot")
        if not saved.n_saved:
            raise InvalidInput(f"there is nothing in slot {slot}", parameter="slot")
        return SlotFiled(question.question_id, saved.n_saved, saved.n_written, time.monotonic() - began)

    async def _restore(self, client: ServerClient, question: RestoreSlot, slot: int) -> SlotFiled:
        began = time.monotonic()
        body = await client.post(f"/slots/{slot}?action=restore", {"filename": question.filename}, _FILE_S)
        restored = decode(body, RestoredSlot, "restored slot")
        return SlotFiled(question.question_id, restored.n_restored, restored.n_read, time.monotonic() - began)

    async def _erase(self, client: ServerClient, slot: int) -> int:
        body = await client.post(f"/slots/{slot}?action=erase", {}, _ANSWER_S)
        return decode(body, ErasedSlot, "erased slot").n_erased


def _idle(states: list[SlotState], slot: int) -> int:
    found = next((state for state in states if state.slot == slot), None)
    if found is None:
        raise InvalidInput(f"there is no slot {slot}, only 0 to {len(states) - 1}", parameter="slot")
    if found.request_id is not None:
        raise InvalidInput(f"a request runs in slot {slot}", parameter="slot")
    return slot


def _state(slot: Slot) -> SlotState:
    """Who runs in it is known by llama-server's own number only."""
    if not slot.is_processing:
        return SlotState(slot=slot.id, num_tokens=slot.n_prompt_tokens)
    return SlotState(
        slot=slot.id,
        num_tokens=slot.n_prompt_tokens,
        request_id=f"task-{slot.id_task}",
        num_prompt=max(0, slot.n_prompt_tokens - slot.num_decoded),
        num_completion=slot.num_decoded,
    )
