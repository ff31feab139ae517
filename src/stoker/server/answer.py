"""Answers on their way to a client: one stream of deltas for every dialect, and the driver that sends it.

Generation --Output--> Delta --Writer.push--> bytes of a stream
               merged: Delta --Writer.whole--> one reply
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from stoker.chat.answers import OutputReader, Part, reasoning_of, text_of
from stoker.engine.protocol import Output
from stoker.engine.view import Progress
from stoker.errors import StokerError
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.errors import error_event, json_response
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.transport.connection import while_connected
from stoker.server.transport.sse import SSE, EventStream, Framing
from stoker.text.chat_formats.events import CallBegin, CallEnd
from stoker.text.chat_formats.reader import Reader

_log = logging.getLogger(__name__)


class Delta(msgspec.Struct, frozen=True):
    """The text and events that one step adds to one choice."""

    choice: int
    """Number of the choice, prompt by prompt."""
    parts: Sequence[Part]
    """In the order in which the model wrote them; empty if a step added no text."""
    output: Output
    """Tokens, log-probabilities, usage, and how the choice ended if it did."""

    @property
    def text(self) -> str:
        """The content."""
        return text_of(self.parts)

    @property
    def reasoning(self) -> str:
        """The model's reasoning."""
        return reasoning_of(self.parts)

    @property
    def progress(self) -> Progress | None:
        """Given: nothing is added, the prompt is still being computed."""
        return self.output.progress

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
        parts = Parts(generation.reader, generation.tool_calls)
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
    parts = Parts(generation.reader, generation.tool_calls)
    return writer.whole([parts.delta(index, output) for index, output in enumerate(outputs)])


class Parts:
    """Reads the outputs of one generation.

    Args:
        make_reader: makes the reader of one choice; None = an answer is content as it is written.
        counted: where tool calls count.
    """

    def __init__(self, make_reader: Callable[[], Reader] | None, counted: Counter[tuple[str, str]]) -> None:
        self._make_reader = make_reader
        self._counted = counted
        self._is_in_call: set[int] = set()
        """Choices in which a call has begun and not ended."""
        self._readers: dict[int, OutputReader] = {}

    def delta(self, choice: int, output: Output) -> Delta:
        """The delta that an output of the engine adds to a choice."""
        reader = self._readers.get(choice)
        if reader is None:
            reader = self._readers[choice] = OutputReader(self._make_reader)
        delta = Delta(choice, reader.parts(output), output)
        self._count(delta, reader)
        return delta

    def _count(self, delta: Delta, reader: OutputReader) -> None:
        for part in delta.parts:
            if isinstance(part, CallBegin):
                self._is_in_call.add(delta.choice)
            elif isinstance(part, CallEnd):
                self._is_in_call.discard(delta.choice)
                self._counted["complete", reader.format_name] += 1
        if delta.is_last and delta.choice in self._is_in_call:
            self._counted["cut_off", reader.format_name] += 1
        if delta.is_last and reader.num_mistaken:
            self._counted["not_a_call", reader.format_name] += reader.num_mistaken
