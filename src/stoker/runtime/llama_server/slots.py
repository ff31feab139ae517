"""A look into llama-server's slots; forgetting, saving and restoring what they hold."""

from __future__ import annotations

import time

from stoker.core.slot_state import SlotState
from stoker.engine.protocol import SlotFiled
from stoker.errors import InvalidInput
from stoker.runtime.llama_server.client import LlamaServerClient
from stoker.runtime.llama_server.wire import ErasedSlot, RestoredSlot, SavedSlot, Slot, decode

_FILE_S = 300.0
_ANSWER_S = 60.0
"""llama-server looks between two batches, and a batch may take long."""


class Slots:
    """What they held when it was last looked. Counts are in tokens."""

    def __init__(self) -> None:
        self.num_retained = 0
        """Of finished conversations."""

    async def look(self, client: LlamaServerClient, timeout_s: float = _ANSWER_S) -> list[SlotState]:
        """What every slot holds now.

        Raises:
            BrokenOff: the server has gone.
            StokerError: it did not answer in time, or otherwise than it should.
        """
        states = [_state(slot) for slot in decode(await client.get("/slots", timeout_s), list[Slot], "slots")]
        self.num_retained = sum(state.num_tokens for state in states if state.request_id is None)
        return states

    async def erase(self, client: LlamaServerClient, slot: int | None) -> int:
        """Forgets what is in one slot, or in all in which nobody runs. Returns how many tokens those were.

        Raises:
            InvalidInput: there is no such slot, or a request runs in it.
            BrokenOff: the server has gone.
            StokerError: see `look`.
        """
        states = await self.look(client)
        idle = [state.slot for state in states if state.request_id is None]
        chosen = idle if slot is None else [_idle(states, slot)]
        return sum([await self._erase(client, number) for number in chosen])

    async def save(self, client: LlamaServerClient, slot: int, filename: str) -> SlotFiled:
        """Writes what a finished conversation left in a slot to a file in llama-server's folder for that.

        Raises:
            InvalidInput: see `erase`; or that is no name for a file.
            StokerError: see `erase`.
        """
        number, began = _idle(await self.look(client), slot), time.monotonic()
        body = await client.post(f"/slots/{number}?action=save", {"filename": filename}, _FILE_S)
        saved = decode(body, SavedSlot, "saved slot")
        if not saved.n_saved:
            raise InvalidInput(f"there is nothing in slot {slot}", parameter="slot")
        return SlotFiled("", saved.n_saved, saved.n_written, time.monotonic() - began)

    async def restore(self, client: LlamaServerClient, slot: int, filename: str) -> SlotFiled:
        """Fills an idle slot with what was saved.

        Raises:
            InvalidInput: there is no such file, or it is another model's or damaged; see `erase`.
            StokerError: see `erase`.
        """
        number, began = _idle(await self.look(client), slot), time.monotonic()
        body = await client.post(f"/slots/{number}?action=restore", {"filename": filename}, _FILE_S)
        restored = decode(body, RestoredSlot, "restored slot")
        return SlotFiled("", restored.n_restored, restored.n_read, time.monotonic() - began)

    async def _erase(self, client: LlamaServerClient, slot: int) -> int:
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
