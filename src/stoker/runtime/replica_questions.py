"""Routes questions to a model's replicas: the type of a question decides which ones answer it. It holds no requests.

```
any replica      Tokenize, Detokenize, Embed, and all types not named here: the least busy one; if it fails, one more.
                 Starts a replica if there is none
all replicas     ListSlots, Look, EraseSlots without a slot, ListSessions, EndSession, EndReasoning, ChangeAdapters
one of them      SaveSlot, RestoreSlot, EraseSlots of one slot: the replica that has the slot
the one named    ReadPrefix
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stoker.engine.question_messages import (
    A,
    AdapterList,
    Answer,
    ChangeAdapters,
    Embed,
    EndReasoning,
    EndSession,
    Erased,
    EraseSlots,
    Glimpse,
    ListSessions,
    ListSlots,
    Look,
    LookAtBlocks,
    Question,
    ReadPrefix,
    ReasoningEnded,
    RestoreSlot,
    SaveSlot,
    SessionEnded,
    SessionList,
    SlotList,
    as_answer_to,
)
from stoker.errors import EngineCrashed, InvalidInput, ModelNotLoaded, Overloaded, StokerError, UnsupportedParameter
from stoker.runtime.replica import Replica, Work
from stoker.runtime.replica_adapters import ReplicaAdapters
from stoker.runtime.replica_set import ReplicaSet
from stoker.runtime.routing import TOKEN_BYTES


class ReplicaQuestions:
    """Answers the questions of one model. Belongs to one event loop.

    Slot `s` of replica `n` has the number `n * (slots of one replica) + s`.

    Args:
        replicas: the model's replicas.
        adapters: the replicas' adapters.
        wake: starts a replica if there is none, see `Fleet.wake`.
    """

    def __init__(self, replicas: ReplicaSet, adapters: ReplicaAdapters, wake: Callable[[], Awaitable[None]]) -> None:
        self._replicas = replicas
        self._wake = wake
        self._adapters = adapters
        self._slots_each: int | None = None

    async def ask(self, question: Question[A]) -> A:
        """The answer for the model as a whole.

        Raises:
            StokerError: see `Runtime.ask`.
        """
        return as_answer_to(question, await self._answer(question))

    async def _answer(self, question: Question[Any]) -> Answer:
        match question:
            case ChangeAdapters():
                return AdapterList(question.question_id, await self._adapters.change(question))
            case ListSlots():
                return await self._list_slots(question)
            case Look():
                return await self._look(question)
            case ListSessions():
                return await self._list_sessions(question)
            case EndSession():
                ended = await asyncio.gather(*(each.runtime.ask(question) for each in self._replicas.answering()))
                return SessionEnded(question.question_id, any(each.was_there for each in ended))
            case EndReasoning():
                found = await asyncio.gather(*(each.runtime.ask(question) for each in self._replicas.answering()))
                return ReasoningEnded(question.question_id, sum(each.num_choices for each in found))
            case EraseSlots(slot=None):
                erased = await asyncio.gather(*(each.runtime.ask(question) for each in self._replicas.answering()))
                return Erased(question.question_id, sum(each.num_tokens for each in erased))
            case ReadPrefix(replica=number):
                return await self._replica(number).runtime.ask(question)
            case LookAtBlocks():
                raise UnsupportedParameter("the blocks of a model with replicas belong to each replica")
            case EraseSlots(slot=int(slot)) | SaveSlot(slot=slot) | RestoreSlot(slot=slot):
                return await self._ask_holder(question, slot)
            case _:
                return await self._ask_any(question)

    def _replica(self, number: int) -> Replica:
        found = next((each for each in self._replicas.answering() if each.number == number), None)
        if found is None:
            raise InvalidInput(f"no replica {number} answers", parameter="replica")
        return found

    async def _list_slots(self, question: ListSlots) -> SlotList:
        replicas = self._replicas.answering()
        found = await asyncio.gather(*(replica.runtime.ask(question) for replica in replicas))
        size = self._slots_each = max(len(answer.slots) for answer in found)
        slots = [
            replace(state, slot=replica.number * size + state.slot, replica=replica.number)
            for replica, answer in zip(replicas, found, strict=True)
            for state in answer.slots
        ]
        return SlotList(question.question_id, slots)

    async def _look(self, question: Look) -> Glimpse:
        """The views of all replicas that answer; a replica that fails is left out unless all fail."""
        replicas, since = self._replicas.answering(), question.since
        looks = [msgspec.structs.replace(question, since={0: since.get(each.number, 0)}) for each in replicas]
        asked = (each.runtime.ask(look) for each, look in zip(replicas, looks, strict=True))
        found = await asyncio.gather(*asked, return_exceptions=True)
        errors = [each for each in found if isinstance(each, BaseException)]
        worst = next((each for each in errors if not isinstance(each, StokerError)), errors[0] if errors else None)
        if worst is not None and (len(errors) == len(found) or not isinstance(worst, StokerError)):
            raise worst
        views = [
            msgspec.structs.replace(view, replica=replica.number)
            for replica, glimpse in zip(replicas, found, strict=True)
            if isinstance(glimpse, Glimpse)
            for view in glimpse.engines
        ]
        return Glimpse(question.question_id, views)

    async def _list_sessions(self, question: ListSessions) -> SessionList:
        """All sessions; of a session that is on several replicas, the state of the last use."""
        found = await asyncio.gather(*(each.runtime.ask(question) for each in self._replicas.answering()))
        states = [state for answer in found for state in answer.sessions]
        latest = {state.name: state for state in sorted(states, key=lambda state: state.expires_in_s)}
        return SessionList(question.question_id, list(latest.values()))

    async def _ask_holder(self, question: Question[Any], slot: int) -> Answer:
        replicas = self._replicas.answering()
        size = self._slots_each or max(1, len((await replicas[0].runtime.ask(ListSlots())).slots))
        number, own = divmod(slot, size)
        holder = next((replica.runtime for replica in replicas if replica.number == number), None)
        if holder is None:
            raise InvalidInput(f"there is no slot {slot}", parameter="slot")
        return await holder.ask(msgspec.structs.replace(question, slot=own))

    async def _ask_any(self, question: Question[Any]) -> Answer:
        """Asks the replica with the least to do, and once another one if it cannot answer."""
        await self._wake()
        replica = _least_busy(self._replicas.answering())
        try:
            return await _ask(replica, question)
        except (EngineCrashed, ModelNotLoaded, Overloaded):
            others = [other for other in self._replicas.replicas if other.can_answer and other is not replica]
            if not others:
                raise
        return await _ask(_least_busy(others), question)


async def _ask(replica: Replica, question: Question[Any]) -> Answer:
    with replica.working_on(Work(_num_tokens(question), 0)):
        return await replica.runtime.ask(question)


def _num_tokens(question: Question[Any]) -> int:
    """Estimate of the tokens that have to be computed for the question."""
    if not isinstance(question, Embed):
        return 1
    return sum(len(given) // TOKEN_BYTES + 1 if isinstance(given, str) else len(given) for given in question.inputs)


def _least_busy(replicas: Sequence[Replica]) -> Replica:
    return min(replicas, key=lambda replica: replica.candidate().standing)
