"""Sends the answer to a request, as a stream or as one reply. Each dialect's `Writer` encodes the deltas.

Generation --Output--> Delta --Writer.push--> bytes of a stream
               merged: Delta --Writer.whole--> one reply
"""

from __future__ import annotations

import asyncio
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

_MOST_POSITIONS = 256
"""Number of tokens with log-probabilities from which on a whole reply is made on a thread: with 20 alternatives each,
8,000 tokens would block the event loop for 0.7 s."""


class Delta(msgspec.Struct, frozen=True):
    """The text and events that one step adds to one choice."""

    choice: int
    """Index of the choice; the choices of the first prompt come first."""
    parts: Sequence[Part]
    """Pieces of content, reasoning and tool calls, in the order in which the model wrote them; empty if the step added
    no text."""
    output: Output
    """The engine's output: tokens, log-probabilities, usage, and the finish reason if the choice ended."""

    @property
    def text(self) -> str:
        """The text of the answer, without reasoning and tool calls."""
        return text_of(self.parts)

    @property
    def reasoning(self) -> str:
        """The text of the model's reasoning."""
        return reasoning_of(self.parts)

    @property
    def progress(self) -> Progress | None:
        """Progress of the prefill. If it is given, the delta adds nothing to the answer."""
        return self.output.progress

    @property
    def is_last(self) -> bool:
        """Whether the choice ends with this delta."""
        return self.output.finish_reason is not None


class Writer:
    """Encodes the answers to one request in the format of one API. An instance holds the state of one reply."""

    framing: Framing = SSE

    def begin(self) -> bytes:
        """The bytes before the first delta."""
        return b""

    def push(self, delta: Delta) -> bytes:
        """The bytes of one delta; may be empty."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The bytes after the last delta of all choices."""
        return b""

    def fail(self, error: StokerError, scope: Scope) -> bytes:
        """The last bytes of a stream that ends with an error."""
        return error_event(error, scope)

    def whole(self, answers: Sequence[Delta]) -> object:
        """The reply without streaming, from one delta per choice that holds the whole choice. May run on a thread."""
        raise NotImplementedError

    def settle(self) -> None:
        """Called on the event loop after `whole`: stores the reply, if it is to be stored."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for answers: the HTTP request, the model that answers, and the generation that is requested."""

    http: Request
    config: ServerConfig
    served: ServedModel
    request: GenerationRequest


async def answer(asked: Asked, writer_of: Callable[[Generation], Writer], *, is_stream: bool) -> Response | EventStream:
    """The response with the answers, as a stream or as one reply. A refusal is raised before a response begins.

    Args:
        asked: the request.
        writer_of: makes the dialect's writer for the accepted generation.
        is_stream: whether the client wants a stream.

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
    """The bytes of a stream, at most one item per output. An error of the generation becomes the last event."""
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
    """The reply without streaming: all outputs of each choice merged, in the dialect's shape."""
    outputs = await generation.collect()
    parts = Parts(generation.reader, generation.tool_calls)
    answers = [parts.delta(index, output) for index, output in enumerate(outputs)]
    if sum(len(output.logprobs or ()) for output in outputs) > _MOST_POSITIONS:
        reply = await asyncio.to_thread(writer.whole, answers)
    else:
        reply = writer.whole(answers)
    writer.settle()
    return reply


class Parts:
    """Parses the outputs of one generation into deltas with content, reasoning and tool calls.

    Args:
        make_reader: makes the parser of one choice; None = all text of an answer is content.
        counted: counter of tool calls, by outcome and format.
    """

    def __init__(self, make_reader: Callable[[], Reader] | None, counted: Counter[tuple[str, str]]) -> None:
        self._make_reader = make_reader
        self._counted = counted
        self._is_in_call: set[int] = set()
        """Choices with a tool call that has begun and not ended."""
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
