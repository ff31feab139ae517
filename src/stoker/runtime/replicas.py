"""Several engines of one model as one `Runtime`: each request goes to one of them, and a crash of one is not its end.

A request that had not begun to answer when its engine died is given once to another one, or, if there is none, to
whichever is back first. One that had begun ends with `EngineCrashed`. One that waits while another engine has a free
place goes there, once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import msgspec

from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.protocol import Accepted, Embed, Embedded, Output, SlotFiled, Submit, Tokenized
from stoker.errors import EngineCrashed, InvalidInput, ModelNotLoaded, Overloaded, StokerError
from stoker.runtime.base import Health, Runtime
from stoker.runtime.fleet import Fleet, MakeRuntime
from stoker.runtime.replica import Replica, Work
from stoker.runtime.replica_adapters import ReplicaAdapters
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replica_request import ReplicaRequest
from stoker.runtime.routing import TOKEN_BYTES, Affinity, Beginning, choose
from stoker.text.messages import Message

_LOOK_EVERY_S = 0.05
"""While no replica can be asked. Also before a request moves: what has killed one engine may have killed others."""
_NOWHERE = Beginning((), 1)

AnswerT = TypeVar("AnswerT")


class ReplicatedRuntime:
    """The `Runtime` over the replicas of one model, which it owns. Belongs to one event loop.

    Args:
        make: makes a replica's runtime. An engine that dies must end its requests at once, see `EngineClient.repeats`.
        config: how many there are.
        restart_wait_s: how long a request that had not begun waits if no replica can be asked.
        clock: seconds; only differences count.
        on_closed: called on another thread when all of them are gone, maybe twice: ends what they have shared.
    """

    def __init__(
        self,
        make: MakeRuntime,
        config: ReplicaConfig,
        *,
        restart_wait_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._fleet = Fleet(make, config, clock, on_closed, self._spread)
        self._adapters = ReplicaAdapters(self._fleet)
        self._restart_wait_s = restart_wait_s
        self._clock = clock
        self._affinity = Affinity()
        self._caches: dict[int, tuple[Runtime, int]] = {}
        """Of which process, by its restarts, the affinity of a number is."""
        self._requests: dict[str, ReplicaRequest] = {}
        self._starting: asyncio.Future[None] | None = None
        self._slots_each: int | None = None

    @property
    def card(self) -> ModelCard:
        card, adapters = self._fleet.card(), self._adapters.cards
        return card if adapters is None else msgspec.structs.replace(card, adapters=adapters)

    async def start(self) -> ModelCard:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._fleet.start())
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            self._starting.cancel()
            raise
        return self.card

    def health(self) -> Health:
        return self._fleet.health()

    def check(self) -> None:
        """Scales, removes what has drained or failed, and spreads who waits. It is done once a second by itself."""
        self._fleet.check()

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        request = self._admit(submit)
        try:
            while True:
                replica, work = self._place(request)
                try:
                    with replica.working_on(work):
                        async with (
                            aclosing(replica.runtime.generate(self._with_time_left(request))) as events,
                            aclosing(request.followed(events)) as followed,
                        ):
                            async for event in followed:
                                work.note(event)
                                if request.passes(event):
                                    yield event
                    if not request.is_recalled:
                        return
                except (EngineCrashed, ModelNotLoaded, Overloaded) as error:
                    if not request.may_move(error, replica.number):
                        raise
                    await self._await_another(request, error)
        finally:
            del self._requests[submit.request_id]
            self._spread()

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        return self._fleet.first.runtime.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    async def tokenize(self, text: str, *, wants_bos: bool = True, parse_special: bool = True) -> Tokenized:
        return await self._ask(
            lambda runtime: runtime.tokenize(text, wants_bos=wants_bos, parse_special=parse_special), Work(1, 0)
        )

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._ask(lambda runtime: runtime.detokenize(token_ids), Work(1, 0))

    async def embed(self, embed: Embed) -> Embedded:
        num_tokens = sum(
            len(given) // TOKEN_BYTES + 1 if isinstance(given, str) else len(given) for given in embed.inputs
        )
        return await self._ask(lambda runtime: runtime.embed(embed), Work(num_tokens, 0))

    async def slots(self) -> list[SlotState]:
        """Those of all replicas that can be asked; replica `n` has the numbers from `n` times their count on."""
        replicas = self._fleet.answering()
        found = await asyncio.gather(*(replica.runtime.slots() for replica in replicas))
        size = self._slots_each = max(map(len, found))
        return [
            replace(state, slot=replica.number * size + state.slot, replica=replica.number)
            for replica, states in zip(replicas, found, strict=True)
            for state in states
        ]

    async def erase(self, slot: int | None = None) -> int:
        """As of one engine; the numbers of slots are those of `slots`."""
        if slot is None:
            return sum(await asyncio.gather(*(replica.runtime.erase() for replica in self._fleet.answering())))
        runtime, own = await self._slot(slot)
        return await runtime.erase(own)

    async def save_slot(self, slot: int, filename: str) -> SlotFiled:
        """As of one engine; the numbers of slots are those of `slots`, and any replica restores what one has saved."""
        runtime, own = await self._slot(slot)
        return await runtime.save_slot(own, filename)

    async def restore_slot(self, slot: int, filename: str) -> SlotFiled:
        """See `save_slot`."""
        runtime, own = await self._slot(slot)
        return await runtime.restore_slot(own, filename)

    async def _slot(self, slot: int) -> tuple[Runtime, int]:
        """Whose slot that is, and its number there."""
        replicas = self._fleet.answering()
        size = self._slots_each or max(1, len(await replicas[0].runtime.slots()))
        number, own = divmod(slot, size)
        chosen = next((replica.runtime for replica in replicas if replica.number == number), None)
        if chosen is None:
            raise InvalidInput(f"there is no slot {slot}", parameter="slot")
        return chosen, own

    async def change_adapters(
        self, *, load: AdapterSpec | None = None, unload: str | None = None, scales: dict[int, float] | None = None
    ) -> list[AdapterCard]:
        """In all replicas, or in none. Once begun it must not be cancelled."""
        if (load, unload, scales) == (None, None, None):
            return await self._adapters.present()
        return await self._adapters.change(load=load, unload=unload, scales=scales)

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        self._fleet.begin_with(adapters)

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._fleet.close()

    def _admit(self, submit: Submit) -> ReplicaRequest:
        if submit.request_id in self._requests:
            raise InvalidInput(f"request id {submit.request_id!r} is already in use", parameter="request_id")
        deadline = None if submit.timeout_s is None else self._clock() + submit.timeout_s
        request = self._requests[submit.request_id] = ReplicaRequest(submit, deadline)
        return request

    def _place(self, request: ReplicaRequest) -> tuple[Replica, Work]:
        """Where it goes, with what it will cost there; the choice is remembered."""
        submit = request.submit
        replicas = {replica.number: replica for replica in self._fleet.answering()}
        replicas = {n: replica for n, replica in replicas.items() if n not in request.avoids} or replicas
        beginning = request.beginning if submit.cache_prompt else replace(request.beginning, keys=())
        matched = {n: self._matched(replica, beginning) for n, replica in replicas.items()}
        candidates = [replica.candidate(matched[n]) for n, replica in replicas.items()]
        chosen = choose(candidates, beginning, companion=self._companion(submit.group))
        assert chosen is not None
        self._affinity.note(chosen, beginning)
        request.go_to(chosen)
        return replicas[chosen], Work.of(submit, beginning, matched[chosen])

    def _spread(self) -> None:
        """Whoever waits while another replica has a free place is called away, and then placed anew."""
        serving = [replica for replica in self._fleet.replicas if replica.can_answer]
        num_free = sum(replica.num_free for replica in serving)
        if num_free and any(replica.num_open > replica.card.parallel for replica in serving):
            num_free -= sum(request.is_recalled for request in self._requests.values())
            waiting = [request for replica in serving for request in self._waiting_at(replica)]
            for request in sorted(waiting, key=_urgency)[: max(0, num_free)]:
                request.recall()

    def _waiting_at(self, replica: Replica) -> list[ReplicaRequest]:
        """Those that may go, the next ones first; the engine is taken to compute as many as it can, in their order."""
        here = [request for request in self._requests.values() if request.replica == replica.number]
        unheard = sorted((request for request in here if not request.has_begun), key=_urgency)
        num_computed = replica.card.parallel - (len(here) - len(unheard))
        return [request for request in unheard[max(0, num_computed) :] if request.may_be_recalled]

    def _matched(self, replica: Replica, beginning: Beginning) -> int:
        cache = replica.runtime, replica.runtime.health().num_restarts
        if self._caches.get(replica.number) != cache:  # another process has the number: it remembers nothing
            self._caches[replica.number] = cache
            self._affinity.forget(replica.number)
        return self._affinity.matched_tokens(replica.number, beginning)

    def _companion(self, group: str) -> int | None:
        if not group:
            return None
        same = (request.replica for request in self._requests.values() if request.submit.group == group)
        return next((replica for replica in same if replica is not None), None)

    def _with_time_left(self, request: ReplicaRequest) -> Submit:
        if request.deadline is None:
            return request.submit
        return msgspec.structs.replace(request.submit, timeout_s=max(0.0, request.deadline - self._clock()))

    async def _await_another(self, request: ReplicaRequest, error: StokerError) -> None:
        """Returns when another replica can have it. After a crash that may be the successor of the one that had it.

        Raises:
            StokerError: `error`, if there is none in time.
        """
        if isinstance(error, EngineCrashed):
            request.patience_ends = self._clock() + self._restart_wait_s
            await asyncio.sleep(_LOOK_EVERY_S)
        if any(replica.can_answer and replica.number not in request.avoids for replica in self._fleet.replicas):
            return
        request.avoids.clear()
        ends = request.patience_ends if request.deadline is None else min(request.patience_ends, request.deadline)
        while self._fleet.replicas and self._clock() < ends:
            await asyncio.sleep(_LOOK_EVERY_S)
            if any(replica.can_answer for replica in self._fleet.replicas):
                return
        raise error

    async def _ask(self, ask: Callable[[Runtime], Awaitable[AnswerT]], work: Work) -> AnswerT:
        """Asks the replica with the least to do, and once another one if it cannot answer."""
        replica = self._least_busy(self._fleet.answering())
        try:
            with replica.working_on(work):
                return await ask(replica.runtime)
        except (EngineCrashed, ModelNotLoaded, Overloaded):
            others = [other for other in self._fleet.replicas if other.can_answer and other is not replica]
            if not others:
                raise
        other = self._least_busy(others)
        with other.working_on(work):
            return await ask(other.runtime)

    def _least_busy(self, replicas: Sequence[Replica]) -> Replica:
        number = choose([replica.candidate() for replica in replicas], _NOWHERE)
        return next(replica for replica in replicas if replica.number == number)


def _urgency(request: ReplicaRequest) -> int:
    return -request.submit.priority
