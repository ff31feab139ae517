"""Answers on their way to a client: one stream of deltas for every dialect, and the driver that sends it.

Generation --Output--> Delta --Writer.push--> bytes of a stream
               merged: Delta --Writer.whole--> one reply
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from stoker.engine.protocol import Output
from stoker.errors import StokerError
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.errors import error_event, json_response
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.transport.connection import while_connected
from stoker.server.transport.sse import SSE, EventStream, Framing
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from stoker.text.chat_formats.reader import Reader

_log = logging.getLogger(__name__)

Part: TypeAlias = Event
"""Content, reasoning, or a piece of a tool call."""


class Delta(msgspec.Struct, frozen=True):
    """What one step adds to one choice."""

    choice: int
    """Number of the choice, prompt by prompt."""
    parts: Sequence[Part]
    """In the order in which the model wrote them; empty if a step added no text."""
    output: Output
    """Tokens, log-probabilities, usage, and how the choice ended if it did."""

    @property
    def text(self) -> str:
        """The content."""
        return "".join([part.text for part in self.parts if isinstance(part, Content)])

    @property
    def reasoning(self) -> str:
        """What the model thinks before it answers."""
        return "".join([part.text for part in self.parts if isinstance(part, Reasoning)])

    @property
    def is_last(self) -> bool:
        """The choice ends with this delta."""
        return self.output.finish_reason is not None


class Writer:
    """Writes the answers to one request in one dialect. A subclass holds the state of one reply."""

    framing: Framing = SSE

    def begin(self) -> bytes:
        """The bytes before the first delta."""
        return b""

    def push(self, delta: Delta) -> bytes:
        """The bytes of one delta; they may be none."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The bytes after the last delta of all choices."""
        return b""

    def fail(self, error: StokerError, scope: Scope) -> bytes:
        """The last bytes of a stream that an error ends."""
        return error_event(error, scope)

    def whole(self, answers: Sequence[Delta]) -> object:
        """The reply that does not stream, from one complete delta for each choice."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for answers: where it came from, which model answers, and what is asked of it."""

    http: Request
    config: ServerConfig
    served: ServedModel
    request: GenerationRequest


async def answer(asked: Asked, writer_of: Callable[[Generation], Writer], *, is_stream: bool) -> Response | EventStream:
    """Sends the answers as a stream or as one reply. Refusals are raised in here, before a response begins.

    Args:
        asked: the request.
        writer_of: makes the dialect's writer for the generation that was accepted.
        is_stream: the client wants a stream.

    Raises:
        StokerError: the request was refused, or failed before a stream began.
    """
    generation = await while_connected(asked.http.receive, Generation.open(asked.served, asked.request))
    writer = writer_of(generation)
    if is_stream:
        events = stream(generation, writer, asked.http.scope)
        return EventStream(events, generation.close, asked.config, writer.framing)
    async with generation:
        reply = await while_connected(asked.http.receive, whole(generation, writer))
    return json_response(reply)


async def stream(generation: Generation, writer: Writer, scope: Scope) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream, one item per step. An error of the generation becomes the last event."""
    if begin := writer.begin():
        yield begin
    try:
        parts = Parts(generation.reader)
        async for index, output in generation:
            if event := writer.push(parts.delta(index, output)):
                yield event
        if end := writer.end():
            yield end
    except StokerError as error:
        _log.warning("a stream ended with %s", error.code)
        yield writer.fail(error, scope)


async def whole(generation: Generation, writer: Writer) -> object:
    """The reply that does not stream: the fold of the deltas of each choice, in the dialect's shape."""
    outputs = await generation.collect()
    parts = Parts(generation.reader)
    return writer.whole([parts.delta(index, output) for index, output in enumerate(outputs)])


class Parts:
    """Reads the outputs of one generation.

    Args:
        make_reader: makes the reader of one choice; None = an answer is content as it is written.
    """

    def __init__(self, make_reader: Callable[[], Reader] | None) -> None:
        self._make_reader = make_reader
        self._readers: dict[int, Reader] = {}

    def delta(self, choice: int, output: Output) -> Delta:
        """What an output of the engine adds to a choice."""
        if self._make_reader is None:
            return Delta(choice, (Content(output.text),) if output.text else (), output)
        reader = self._readers.get(choice)
        if reader is None:
            reader = self._readers[choice] = self._make_reader()
        parts = reader.push(reader.marks.joined(output.text, output.marks))
        if output.finish_reason is not None:
            parts += reader.flush()
        return Delta(choice, parts, output)


@dataclass(slots=True)
class ToolCall:
    """A tool call of an answer."""

    call_id: str
    index: int
    """Its place among the calls of the answer."""
    name: str
    is_complete: bool = False
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> str:
        """JSON, as the model wrote it; a part of it if the answer was cut off."""
        return "".join(self._pieces)

    def push(self, text: str) -> None:
        """Adds text to the arguments."""
        self._pieces.append(text)


@dataclass(slots=True)
class ToolCalls:
    """The tool calls of one choice, or those so far. Text is not kept: a stream may be long.

    Args:
        id_prefix: begins the ids of calls.
        seed: makes the ids differ from those of other answers.
    """

    id_prefix: str
    seed: str
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def push(self, part: Part) -> None:
        """Notes a part of the answer."""
        match part:
            case Content() | Reasoning():
                pass
            case CallBegin():
                self.calls.append(ToolCall(self._call_id(), len(self.calls), part.name))
            case CallArguments():
                self.calls[-1].push(part.text)
            case CallEnd():
                self.calls[-1].is_complete = True

    def push_all(self, parts: Iterable[Part]) -> ToolCalls:
        """Notes all of these parts."""
        for part in parts:
            self.push(part)
        return self

    @property
    def has_complete(self) -> bool:
        """There is a complete tool call."""
        return any(call.is_complete for call in self.calls)

    def _call_id(self) -> str:
        digest = hashlib.blake2s(f"{self.seed}/{len(self.calls)}".encode()).hexdigest()
        return f"{self.id_prefix}{digest[:24]}"
