"""Inspects, erases and fills idle slots of the KV cache. It schedules no request."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.batch import AdapterSet, Batch, Entry, Transfer
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import ModelInfo
from stoker.core.population import Population
from stoker.core.sequence import CacheKey
from stoker.core.slot_state import SlotState
from stoker.core.tiering import Tiering
from stoker.errors import InvalidInput, ResourceExhausted


class Slots:
    """Operations of clients on the slots of one scheduler. Used between steps only.

    Args:
        info: sizes of the backend.
        kv: the KV cache with the slots.
        tiering: notified of KV that is imported into a slot from outside.
        population: says which request runs in a slot; not changed here.
        step_ids: gives the id of a batch that computes nothing.
    """

    def __init__(
        self,
        info: ModelInfo,
        kv: KVCache,
        tiering: Tiering,
        population: Population,
        step_ids: Iterator[int],
    ) -> None:
        self._info = info
        self._kv = kv
        self._tiering = tiering
        self._running = population.running
        self._step_ids = step_ids

    def states(self) -> list[SlotState]:
        """The present state of every slot, in order of slot numbers."""
        return [self._state(slot, length) for slot, length in sorted(self._kv.lengths().items())]

    def erase(self, slot: int) -> int:
        """Clears an idle slot; returns the number of tokens that it held.

        Raises:
            InvalidInput: there is no such slot, or a request runs in it.
        """
        self._check_idle(slot)
        return self._kv.erase(slot)

    def left_in(self, slot: int) -> tuple[tuple[Entry, ...], AdapterSet]:
        """Entries that a finished conversation left in a slot for any request, and the adapters used to compute them.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, it is empty, or its KV belongs to one owner.
        """
        self._check_idle(slot)
        entries, key = self._kv.left_in(slot)
        if not entries:
            raise InvalidInput(f"slot {slot} is empty", parameter="slot")
        assert isinstance(key, CacheKey), "all is computed or adopted under one"
        if key.owner is not None:
            raise InvalidInput(f"only the request that is paused in slot {slot} may read it", parameter="slot")
        return tuple(entries), key.adapters

    def vacate_for(self, slot: int, entries: tuple[Entry, ...], key: bytes) -> Batch:
        """Empties a slot; returns a batch that imports the KV of these entries into it. Call `adopt` after the import.

        Raises:
            InvalidInput: there is no such slot, a request runs in it, or the entries are too many for a sequence.
            ResourceExhausted: running requests need the room.
        """
        self._check_idle(slot)
        if len(entries) > self._info.max_sequence_tokens:
            message = f"{len(entries)} tokens are more than the {self._info.max_sequence_tokens} of one sequence"
            raise InvalidInput(message, parameter="filename")
        self._kv.erase(slot)
        if self._kv.make_room(len(entries)) < len(entries):
            raise ResourceExhausted(f"there is no room for {len(entries)} tokens now", retry_after_s=1.0)
        return Batch(next(self._step_ids), (), self._kv.take_ops(), (Transfer(slot, 0, len(entries), key),))

    def adopt(self, slot: int, entries: tuple[Entry, ...], adapters: AdapterSet = ()) -> None:
        """Registers the slot of `vacate_for` once it is filled with KV that was computed with these adapters."""
        self._kv.adopt(slot, entries, CacheKey(adapters))
        self._tiering.adopt(slot, list(entries), adapters)

    def _check_idle(self, slot: int) -> None:
        if slot not in self._kv.lengths():
            raise InvalidInput(f"there is no slot {slot}: they are 0 … {self._info.num_slots - 1}", parameter="slot")
        if slot in self._running:
            raise InvalidInput(f"slot {slot} is running a request; wait until that has ended", parameter="slot")

    def _state(self, slot: int, length: int) -> SlotState:
        sequence = self._running.get(slot)
        if sequence is None:
            return SlotState(slot=slot, num_tokens=length)
        return SlotState(
            slot=slot,
            num_tokens=length,
            request_id=sequence.request.request_id,
            num_prompt=sequence.num_prompt,
            num_completion=sequence.num_completion,
        )
