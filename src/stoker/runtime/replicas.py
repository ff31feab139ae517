"""Several engines (replicas) of one model as one `Runtime`: routes requests to replicas, and survives their crashes.

A `Fleet` decides how many replicas there are and where they run.

If an engine dies, a request without output yet is sent once to another replica, or, if none can be asked, to the first
that is back; a request with output ends with `EngineCrashed`. A request that waits in a queue moves, at most once, to
another replica that has a free place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Protocol, Unpack

import msgspec

from stoker.engine.cards import ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import A, Question
from stoker.errors import EngineCrashed, InvalidInput, ModelNotLoaded, Overloaded, StokerError
from stoker.runtime.base import Runtime
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.replica import Replica, Work
from stoker.runtime.replica_adapters import ReplicaAdapters
from stoker.runtime.replica_questions import ReplicaQuestions
from stoker.runtime.replica_request import ReplicaRequest
from stoker.runtime.replica_set import ReplicaSet
from stoker.runtime.standings import Standings, matched_by
from stoker.text.messages import Message, RenderOptions

if TYPE_CHECKING:
    from stoker.text.chat_formats.probe import ChatFormat

_LOOK_EVERY_S = 0.05
"""Seconds between two checks while no replica can be asked, and before a request moves after a crash: the cause of one
crash may have killed other engines."""


class Fleet(Protocol):
    """Owns the replicas of one model: adds and removes them."""

    members: ReplicaSet
    prefixes: CachedPrefixes
    """The prompts that each replica has cached, by its number."""

    def listen(self, on_checked: Callable[[], None]) -> None:
        """Registers `on_checked`, which is called after each check of the replicas: places may have become free."""
        ...

    async def start(self) -> None:
        """Starts replicas; returns when the model can be asked. After an error no replica is left."""
        ...

    async def wake(self, limit_s: float | None = None) -> None:
        """Starts a replica if the model has none because it is idle, and waits for it; else returns at once.

        Args:
            limit_s: maximum wait in seconds; None = as long as the fleet allows.

        Raises:
            ModelNotLoaded: no replica was ready in time.
            Overloaded: too many requests wait already.
        """
        ...

    def check(self) -> None:
        """Adds, drains and removes replicas as is due now. A fleet calls this itself about once a second."""
        ...

    async def close(self) -> None:
        """Closes every replica. Calling it twice is allowed."""
        ...


class ReplicatedRuntime:
    """The `Runtime` over the replicas of one model. Owns the model's fleet. Belongs to one event loop.

    Args:
        fleet: the model's fleet, not started yet.
        restart_wait_s: seconds that a request without output waits for a replica after a crash.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        restart_wait_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._replicas = fleet.members
        fleet.listen(self._spread)
        self._adapters = ReplicaAdapters(self._replicas)
        self._questions = ReplicaQuestions(self._replicas, self._adapters, fleet.wake)
        self._restart_wait_s = restart_wait_s
        self._clock = clock
        self._prefixes = fleet.prefixes
        self._caches: dict[int, tuple[Runtime, int]] = {}
        """By replica: its runtime and restart count when a request was last routed; a change means an empty cache."""
        self._standings = Standings()
        """The replicas that can be asked, as of `_refresh`."""
        self._overfull: set[int] = set()
        """Replicas in `_standings` at which requests wait."""
        self._requests: dict[str, ReplicaRequest] = {}
        self._starting: asyncio.Future[None] | None = None

    @property
    def card(self) -> ModelCard:
        card, adapters = self._replicas.card(), self._adapters.cards
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
        return self._replicas.health()

    def check(self) -> None:
        """Checks the replicas, see `Fleet.check`, and moves waiting requests. The fleet does so about once a second."""
        self._fleet.check()

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        request = self._admit(submit)
        try:
            while True:
                await self._fleet.wake(self._left_s(request))
                replica, num_cached = self._place(request)
                work = Work.of(submit, request.beginning, num_cached)
                try:
                    with self._working(replica, work, request):
                        async with (
                            aclosing(replica.runtime.generate(self._submit_of(request, num_cached))) as events,
                            aclosing(request.followed(events)) as followed,
                        ):
                            async for event in followed:
                                work.note(event)
                                replica.note_change()
                                if isinstance(event, Accepted):
                                    self._prefixes.note_accepted(request.beginning, event)
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

    @contextmanager
    def _working(self, replica: Replica, work: Work, request: ReplicaRequest) -> Generator[None]:
        """Counts the request as work of the replica while the block runs."""
        with replica.working_on(work):
            try:
                yield
            finally:
                self._prefixes.note_end(replica.number, request.beginning)

    @property
    def chat_format(self) -> ChatFormat:
        return self._replicas.first.runtime.chat_format

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        return self._replicas.first.runtime.render_chat(messages, **options)

    async def ask(self, question: Question[A]) -> A:
        """See `ReplicaQuestions`. A `ChangeAdapters` that has begun must not be cancelled."""
        return await self._questions.ask(question)

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        self._replicas.begin_with(adapters)

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

    def _place(self, request: ReplicaRequest) -> tuple[Replica, int]:
        """Chooses a replica for the request; notes the choice for the prefix cache.

        Returns:
            The replica, and the prompt tokens that it probably has cached.
        """
        self._refresh()
        matches = self._prefixes.matches(request.beginning)
        companion = self._companion(request.submit.group)
        chosen = self._standings.choose(matches, avoids=request.avoids, companion=companion)
        if chosen is None:
            (replica,) = self._replicas.answering()
            self._note_process(replica)
        else:
            replica = self._replicas[chosen]
        self._prefixes.note_sent(replica.number, request.beginning)
        request.go_to(replica.number)
        return replica, matched_by(replica.number, matches)

    def _refresh(self) -> None:
        """Brings `_standings` up to date."""
        for number, replica in self._replicas.take_changed():
            self._overfull.discard(number)
            if replica is None or not replica.can_answer:
                self._standings.drop(number)
                continue
            self._note_process(replica)
            self._standings.put(replica.candidate())
            if replica.num_open > replica.card.parallel:
                self._overfull.add(number)

    def _spread(self) -> None:
        """Recalls waiting requests from busy replicas while another replica has a free place."""
        self._refresh()
        if not self._overfull:
            return
        serving = [replica for replica in self._replicas.replicas if replica.can_answer]
        num_free = sum(replica.num_free for replica in serving)
        if num_free:
            num_free -= sum(request.is_recalled for request in self._requests.values())
            waiting = [request for replica in serving for request in self._waiting_at(replica)]
            for request in sorted(waiting, key=_urgency)[: max(0, num_free)]:
                request.recall()

    def _waiting_at(self, replica: Replica) -> list[ReplicaRequest]:
        """Waiting requests of the replica that may move, in queue order; assumes that all of its places are in use."""
        here = [request for request in self._requests.values() if request.replica == replica.number]
        unheard = sorted((request for request in here if not request.has_begun), key=_urgency)
        num_computed = replica.card.parallel - (len(here) - len(unheard))
        return [request for request in unheard[max(0, num_computed) :] if request.may_be_recalled]

    def _note_process(self, replica: Replica) -> None:
        cache = replica.runtime, replica.runtime.health().num_restarts
        known = self._caches.get(replica.number)
        if known is not None and known != cache:  # a new process has this number, with an empty cache
            self._prefixes.forget_sent(replica.number)
        self._caches[replica.number] = cache

    def _companion(self, group: str) -> int | None:
        if not group:
            return None
        same = (request.replica for request in self._requests.values() if request.submit.group == group)
        return next((replica for replica in same if replica is not None), None)

    def _submit_of(self, request: ReplicaRequest, num_cached: int) -> Submit:
        """The request as the replica gets it, with the remaining time as its timeout."""
        submit, wants_blocks = request.submit, self._prefixes.hears
        if request.deadline is None and not (wants_blocks or num_cached):
            return submit
        left_s = self._left_s(request)
        return msgspec.structs.replace(submit, timeout_s=left_s, wants_blocks=wants_blocks, num_cached=num_cached)

    def _left_s(self, request: ReplicaRequest) -> float | None:
        """Seconds until the request's deadline; None = no deadline."""
        return None if request.deadline is None else max(0.0, request.deadline - self._clock())

    async def _await_another(self, request: ReplicaRequest, error: StokerError) -> None:
        """Waits until a replica can take the request; after a crash, also the restarted engine that had it before.

        Raises:
            StokerError: `error`, if no replica is ready in time.
        """
        if isinstance(error, EngineCrashed):
            request.patience_ends = self._clock() + self._restart_wait_s
            await asyncio.sleep(_LOOK_EVERY_S)
        if any(replica.can_answer and replica.number not in request.avoids for replica in self._replicas.replicas):
            return
        request.avoids.clear()
        ends = request.patience_ends if request.deadline is None else min(request.patience_ends, request.deadline)
        while self._replicas.has_hope and self._clock() < ends:
            await asyncio.sleep(_LOOK_EVERY_S)
            if any(replica.can_answer for replica in self._replicas.replicas):
                return
        raise error


def _urgency(request: ReplicaRequest) -> int:
    return -request.submit.priority
