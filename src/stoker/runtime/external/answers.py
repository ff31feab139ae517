"""Runs requests on an external server, from the queue to the last token, and repeats them if the server dies early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stoker.core.request import Request
from stoker.engine.protocol import Output, Submit, Usage
from stoker.errors import BackendError, Timeout
from stoker.runtime.external.client import BrokenOff
from stoker.runtime.external.incarnation import Incarnation
from stoker.runtime.external.slot_queue import SlotQueue
from stoker.runtime.external.supervisor import ServerSupervisor

T = TypeVar("T")


class AnswerReader(Protocol):
    """The answer of one server to one request, event by event."""

    @property
    def has_begun(self) -> bool:
        """Whether a token was seen, so that the request cannot be repeated on another server."""
        ...

    def push(self, event: bytes) -> Output | None:
        """The output that an event adds to the answer; None if there is nothing to output yet.

        Raises:
            StokerError: the server failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that has passed every check, with all that is needed to send it."""

    submit: Submit
    request: Request
    """Prompt tokens and complete sampling parameters."""
    max_tokens: int
    """Maximum length of the answer in tokens: as requested, or as much as fits into the context."""
    deadline: float | None
    """The time on the event loop's clock when the request times out; None = never."""
    body: bytes
    """Body of the HTTP request to the server."""
    reader: Callable[[], AnswerReader]
    """Makes a reader for the answer of one server."""
    room: int = 0
    """Further tokens to reserve beside the text, for images and audio, whose tokens only the server counts."""

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_tokens(self) -> int:
        """Maximum number of tokens that the request can ever hold."""
        return self.room + self.num_prompt + max(self.max_tokens, 1)

    async def within(self, awaitable: Awaitable[T]) -> T:
        """The result of `awaitable`, if it is there before the deadline.

        Raises:
            Timeout: the deadline passed.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                return await awaitable
        except TimeoutError as error:
            timeout_s = self.submit.timeout_s or 0.0
            raise Timeout(f"the request was not finished within {timeout_s:g} s", timeout_s=timeout_s) from error


class Answers:
    """The running requests of one external server, with their counters. Belongs to one event loop.

    Args:
        supervisor: provides the server, also after a restart.
        queue: decides which request runs next.
        name: the program's name, for errors.
        path: the HTTP path of the server's completions.
    """

    def __init__(self, supervisor: ServerSupervisor, queue: SlotQueue, *, name: str, path: str) -> None:
        self._name = name
        self._path = path
        self._supervisor = supervisor
        self._queue = queue
        self._computed_at = 0.0
        """The time on the event loop's clock of the last event from a server."""
        self.held: dict[str, int] = {}
        """Tokens of each running request, by the request's id."""
        self.prompt_tokens = 0
        """Prompt tokens of all requests that were answered."""
        self.cached_tokens = 0

    def stalled_s(self) -> float:
        """Seconds for which running requests have been waiting without an event from the server; 0 if none runs."""
        if not self._queue.num_running:
            return 0.0
        since = max(self._computed_at, self._queue.running_since, self._supervisor.ready_at)
        return asyncio.get_running_loop().time() - since

    async def outputs(self, asked: Asked) -> AsyncGenerator[Output, None]:
        """Waits for the request's turn, then yields its outputs. The last output has a `finish_reason`.

        Raises:
            Timeout: the request's deadline passed.
            EngineCrashed: the server died after the first token, or two servers died before it.
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
        """The outputs of a request. If the server dies before the first token, repeats the request once on the next."""
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
                    raise (self._supervisor.closed_error() or self._supervisor.crash(reason)) from error
            incarnation = await asked.within(self._supervisor.successor(reason))

    async def _answer(
        self, asked: Asked, reader: AnswerReader, incarnation: Incarnation
    ) -> AsyncGenerator[Output, None]:
        """The outputs of one server.

        Raises:
            BrokenOff: the connection broke before the answer was complete.
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
