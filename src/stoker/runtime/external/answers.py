"""One request to an external server from the door to its last token, also when the server dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stoker.core.request import Request
from stoker.engine.protocol import Output, Submit, Usage
from stoker.errors import BackendError, ModelNotLoaded, Timeout
from stoker.runtime.external.client import BrokenOff
from stoker.runtime.external.incarnation import Incarnation
from stoker.runtime.external.slot_queue import SlotQueue
from stoker.runtime.external.supervisor import ServerSupervisor

T = TypeVar("T")


class AnswerReader(Protocol):
    """The answer of one server to one request, event by event."""

    @property
    def has_begun(self) -> bool:
        """A token was seen: the request cannot be started over."""
        ...

    def push(self, event: bytes) -> Output | None:
        """What an event adds to the answer; None if it is nothing to tell yet.

        Raises:
            StokerError: the server failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that has passed every check."""

    submit: Submit
    request: Request
    """Its tokens and its complete sampling."""
    max_tokens: int
    """The longest answer that fits, or that is wanted."""
    deadline: float | None
    """On the event loop's clock."""
    body: bytes
    """What the server is sent."""
    reader: Callable[[], AnswerReader]
    """Makes a reader for the answer of one server."""
    room: int = 0
    """Tokens that it is given room for beside its text, because only the server counts them."""

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_tokens(self) -> int:
        """The most that it can ever hold."""
        return self.room + self.num_prompt + max(self.max_tokens, 1)

    async def within(self, awaitable: Awaitable[T]) -> T:
        """What it gives, before the deadline.

        Raises:
            Timeout: it takes too long.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                return await awaitable
        except TimeoutError as error:
            timeout_s = self.submit.timeout_s or 0.0
            raise Timeout(f"the request was not finished within {timeout_s:g} s", timeout_s=timeout_s) from error


class Answers:
    """Belongs to one event loop.

    Args:
        supervisor: has the server, and its successors.
        queue: who is next.
        name: of the program, for errors.
        path: where the server is asked.
    """

    def __init__(self, supervisor: ServerSupervisor, queue: SlotQueue, *, name: str, path: str) -> None:
        self._name = name
        self._path = path
        self._supervisor = supervisor
        self._queue = queue
        self._computed_at = 0.0
        """When a server last said that it has computed something."""
        self.held: dict[str, int] = {}
        """Tokens of each running request, by its id."""
        self.prompt_tokens = 0
        """Of all requests that were answered."""
        self.cached_tokens = 0

    def stalled_s(self) -> float:
        """Seconds for which requests have been waiting without any computation."""
        if not self._queue.num_running:
            return 0.0
        since = max(self._computed_at, self._queue.running_since, self._supervisor.ready_at)
        return asyncio.get_running_loop().time() - since

    async def outputs(self, asked: Asked) -> AsyncGenerator[Output, None]:
        """Waits for its turn, then gives the answer as it comes. The last output has a `finish_reason`.

        Raises:
            Timeout: its deadline passed.
            EngineCrashed: its server died after the first token, or two of them before it.
            StokerError: the server failed.
        """
        place = await asked.within(self._queue.enter(asked.request, asked.num_tokens))
        self.held[asked.request.request_id] = asked.num_prompt
        try:
            async with aclosing(self._attempts(asked)) as outputs:
                async for output in outputs:
                    self._note(asked, output)
                    yield output
        finally:
            del self.held[asked.request.request_id]
            self._queue.leave(place)

    def _note(self, asked: Asked, output: Output) -> None:
        usage = output.usage
        self._queue.charge(asked.request, len(output.token_ids))
        self.held[asked.request.request_id] = usage.prompt_tokens + usage.completion_tokens
        if output.finish_reason is not None:
            self._count(usage)

    def _count(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens

    async def _attempts(self, asked: Asked) -> AsyncGenerator[Output, None]:
        """A request of which nothing was computed yet is given once to the next server."""
        incarnation = await asked.within(self._supervisor.successor("is restarting"))
        for is_last in (False, True):
            reader = asked.reader()
            try:
                async with aclosing(self._answer(asked, reader, incarnation)) as outputs:
                    async for output in outputs:
                        yield output
                return
            except BrokenOff as error:
                reason = await self._supervisor.death_of(incarnation)
                if reason is None:
                    raise BackendError(f"{self._name} ended in the middle of the answer: {error}") from error
                if reader.has_begun or is_last:
                    raise self._lost(reason) from error
            incarnation = await asked.within(self._supervisor.successor(reason))

    def _lost(self, reason: str) -> BackendError | ModelNotLoaded:
        return self._supervisor.closed_error() or self._supervisor.crash(reason)

    async def _answer(
        self, asked: Asked, reader: AnswerReader, incarnation: Incarnation
    ) -> AsyncGenerator[Output, None]:
        """The answer of this server.

        Raises:
            BrokenOff: it did not come to its end.
        """
        loop = asyncio.get_running_loop()
        async with aclosing(incarnation.client.events(self._path, asked.body)) as events:
            while (event := await asked.within(anext(events, None))) is not None:
                self._computed_at = loop.time()
                output = reader.push(event)
                if output is not None:
                    yield output
                    if output.finish_reason is not None:
                        return
        raise BrokenOff("the stream ended before the answer did")
