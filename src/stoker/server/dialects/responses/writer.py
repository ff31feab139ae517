"""Converts the engine's outputs to a response and to the events of its stream. The events build the response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from stoker.chat.answers import Part, ToolCall, ToolCalls
from stoker.engine.protocol import Output, PositionLogprobs, TokenLogprob, Usage
from stoker.errors import StokerError
from stoker.server.answer import Delta, Writer
from stoker.server.dialects.responses.client_calls import CALL_STREAMS, CallStream, Place
from stoker.server.dialects.responses.client_tools import ID_PREFIXES, names_of_client_tools
from stoker.server.dialects.responses.reasoning_types import OutputReasoning, ReasoningText, SummaryText
from stoker.server.dialects.responses.sealing import sealed
from stoker.server.dialects.responses.tools import parts_of_names
from stoker.server.dialects.responses.types import (
    ArgumentsDoneEvent,
    ContentPartEvent,
    Event,
    IncompleteDetails,
    InputDoneEvent,
    InputTokensDetails,
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputItemEvent,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    PieceEvent,
    ReasoningDoneEvent,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseLogprob,
    ResponseReasoning,
    ResponsesRequest,
    ResponseTextConfig,
    ResponseTopLogprob,
    ResponseUsage,
    SummaryDoneEvent,
    SummaryPartEvent,
    TextDeltaEvent,
    TextDoneEvent,
)
from stoker.server.generation import GenerationRequest
from stoker.server.logprobs import TextLogprobs
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning

_replace = msgspec.structs.replace


def new_response(wire: ResponsesRequest, asked: GenerationRequest, model_id: str, created: int) -> Response:
    """A response without output, with the settings of its request."""
    return Response(
        id=asked.reply_id,
        created_at=created,
        status="queued" if wire.background else "in_progress",
        model=model_id,
        output=[],
        background=bool(wire.background),
        store=wire.store is not False,
        metadata=wire.metadata or {},
        instructions=wire.instructions,
        max_output_tokens=asked.sampling.longest,
        previous_response_id=wire.previous_response_id,
        reasoning=_reasoning(wire),
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        temperature=wire.temperature,
        text=ResponseTextConfig(wire.text.format) if wire.text and wire.text.format else ResponseTextConfig(),
        tool_choice=wire.tool_choice or "auto",
        tools=wire.tools or [],
        top_logprobs=wire.top_logprobs,
        top_p=wire.top_p,
        user=wire.user,
    )


def _reasoning(wire: ResponsesRequest) -> ResponseReasoning:
    asked = wire.reasoning
    return ResponseReasoning() if asked is None else ResponseReasoning(asked.effort, asked.wanted_summary)


_Item: TypeAlias = OutputReasoning | OutputMessage | OutputCall | OutputCustomCall


@dataclass(slots=True)
class _Open:
    """The output item that is being written."""

    kind: type[_Item]
    item_id: str
    index: int
    """Index of the item in the output."""
    call: ToolCall | None = None
    name: str = ""
    """Name of the called tool, without its namespace."""
    namespace: str | UnsetType = UNSET
    seals: bool = False
    """Whether a reasoning item also has its text in the opaque form of `sealing`."""
    is_summary: bool = False
    """Whether a reasoning item has its text as a summary."""
    texts: list[str] = field(default_factory=list[str])
    logprobs: list[ResponseLogprob] = field(default_factory=list[ResponseLogprob])

    def item(self, status: str) -> _Item:
        """The item as it is now."""
        text = "".join(self.texts)
        if self.kind is OutputReasoning:
            opaque = sealed(text) if self.seals and status != "in_progress" else None
            content = [] if self.is_summary else [ReasoningText(text=text)]
            summary = [SummaryText(text=text)] if self.is_summary else []
            place = {"id": self.item_id, "status": status}
            return OutputReasoning(content=content, summary=summary, encrypted_content=opaque, **place)
        if self.call is not None:
            call, place = self.call, {"id": self.item_id, "call_id": self.call.call_id, "status": status}
            if call.is_custom:
                return OutputCustomCall(name=self.name, namespace=self.namespace, input=call.arguments, **place)
            return OutputCall(name=self.name, namespace=self.namespace, arguments=call.arguments, **place)
        content = [OutputText(text=text, logprobs=list(self.logprobs))]
        return OutputMessage(id=self.item_id, status=status, content=content)


class ResponseWriter(Writer):
    """Writes one answer: produces the events of each delta, and holds the response that they have built so far.

    Args:
        response: the initial response, see `new_response`.
        keep: called with the response when it is complete.
        now: returns Unix time in seconds.
        keep_thought: see `ToolCalls`.
        seals: whether reasoning items also have their text in the opaque form of `sealing`.
    """

    def __init__(
        self,
        response: Response,
        keep: Callable[[Response], None] = lambda response: None,
        now: Callable[[], float] = time.time,
        keep_thought: Callable[[str, str], None] | None = None,
        *,
        seals: bool = False,
    ) -> None:
        self._seals = seals
        self._summarizes = response.reasoning.summary is not None
        self._response = response
        self._keep = keep
        self._now = now
        self._parts_of_names = parts_of_names(response.tools)
        self._stem = response.id.partition("_")[2]
        self._calls = ToolCalls("call_", response.id, keep_thought)
        names = names_of_client_tools(response.tools)
        self._client_tools = {name: kind for kind, name in names.items()}
        self._open: _Open | CallStream | None = None
        self._done: list[OutputItem] = []
        self._num_before = 0
        """Number of items that precede the answer."""
        self._num_events = 0
        self._logprobs = TextLogprobs()

    def snapshot(self) -> Response:
        """The response as it is now."""
        if self._response.output or (self._open is None and not self._done):
            return self._response
        return _replace(self._response, output=self._output("in_progress"))

    def begin(self) -> bytes:
        events: list[Event] = [self._response_event("response.created")]
        if self._response.status == "queued":
            events.append(self._response_event("response.queued"))
        self._response = _replace(self._response, status="in_progress")
        return encoded([*events, self._response_event("response.in_progress")])

    def push(self, delta: Delta) -> bytes:
        events = encoded(self._follow(delta))
        if delta.is_last:
            self.settle()
        return events

    def fail(self, error: StokerError, scope: Scope | None = None) -> bytes:
        failure = ResponseError(error.code, error.message)
        self._response = _replace(self._response, status="failed", error=failure, output=self._output("incomplete"))
        return encoded([self._response_event("response.failed")])

    def break_off(self, error: StokerError) -> bytes:
        """Like `fail`, after a bug: without the item that was being written, because the bug may be in this item."""
        self._open = None
        return self.fail(error)

    def whole(self, answers: Sequence[Delta]) -> Response:
        (answer,) = answers
        self._follow(answer)
        return self.snapshot()

    def settle(self) -> None:
        self._keep(self.snapshot())

    def _follow(self, delta: Delta) -> list[Event]:
        """The events of a delta; with the last one, the response ends."""
        self._logprobs.push(delta.output)
        events: list[Event] = []
        for part in delta.parts:
            self._calls.push(part)
            events += self._part(part)
        is_begun = len(self._done) > self._num_before or self._open is not None
        if is_begun and not (self._open and self._open.kind is OutputMessage):
            self._logprobs.rest()
        return [*events, *self._end(delta.output)] if delta.is_last else events

    def _part(self, part: Part) -> list[Event]:
        match part:
            case Content():
                return self._content(part.text, self._logprobs.of_message(part.text))
            case Reasoning():
                self._logprobs.pass_by(part.text)
                number = sum(isinstance(item, OutputReasoning) for item in self._done)
                begun = self._begin_item(OutputReasoning, f"rs_{self._stem}{f'x{number}' if number else ''}")
                return [*begun, self._thought(part.text)]
            case CallBegin():
                return [*self._end_item("completed"), *self._begin_call(self._calls.calls[-1])]
            case CallArguments():
                self._logprobs.pass_by(part.text)
                if isinstance(self._open, CallStream):
                    return self._open.push(part.text)
                what = "custom_tool_call_input" if self._calls.calls[-1].is_custom else "function_call_arguments"
                return [self._piece(f"response.{what}.delta", part.text)]
            case CallEnd():
                return self._end_item("completed")

    def _begin_call(self, call: ToolCall) -> list[Event]:
        kind = self._client_tools.get(call.name)
        if kind is not None:
            item_id = f"{ID_PREFIXES[kind]}_{self._stem}_{call.index}"
            self._open = CALL_STREAMS[kind](Place(item_id, len(self._done), self._number), call)
            return self._open.begin()
        item, prefix = (OutputCustomCall, "ctc") if call.is_custom else (OutputCall, "fc")
        return self._begin_item(item, f"{prefix}_{self._stem}_{call.index}", call)

    def _content(self, text: str, positions: list[PositionLogprobs]) -> list[Event]:
        number = sum(isinstance(item, OutputMessage) for item in self._done)
        begun = self._begin_item(OutputMessage, f"msg_{self._stem}{f'x{number}' if number else ''}")
        assert isinstance(self._open, _Open)
        self._open.texts.append(text)
        logprobs = [_logprob(each.chosen, each.top) for each in positions]
        self._open.logprobs += logprobs
        delta = TextDeltaEvent(
            sequence_number=self._number(),
            item_id=self._open.item_id,
            output_index=self._open.index,
            content_index=0,
            delta=text,
            logprobs=logprobs,
        )
        return [*begun, delta]

    def _thought(self, text: str) -> Event:
        if self._summarizes:
            return self._piece("response.reasoning_summary_text.delta", text, summary_index=0)
        return self._piece("response.reasoning_text.delta", text, content_index=0)

    def _piece(
        self, kind: str, text: str, content_index: int | UnsetType = UNSET, summary_index: int | UnsetType = UNSET
    ) -> Event:
        assert isinstance(self._open, _Open)
        self._open.texts.append(text)
        return PieceEvent(
            type=kind,
            sequence_number=self._number(),
            item_id=self._open.item_id,
            output_index=self._open.index,
            delta=text,
            content_index=content_index,
            summary_index=summary_index,
        )

    def _begin_item(self, kind: type[_Item], item_id: str, call: ToolCall | None = None) -> list[Event]:
        """Begins an item, unless one of its kind is open."""
        if isinstance(self._open, _Open) and self._open.kind is kind:
            return []
        ended = self._end_item("completed")
        called = call.name if call is not None else ""
        namespace, name = self._parts_of_names.get(called, (UNSET, called))
        self._open = _Open(kind, item_id, len(self._done), call, name, namespace, self._seals, self._summarizes)
        item, parts = self._open.item("in_progress"), list[Event]()
        if isinstance(item, OutputMessage):
            item = _replace(item, content=[])
        elif isinstance(item, OutputReasoning):
            item = _replace(item, content=[], summary=[])
        begun = self._item_event("response.output_item.added", item)
        if kind is OutputMessage:
            parts.append(self._part_event("response.content_part.added", OutputText(text="")))
        elif kind is OutputReasoning and self._summarizes:
            parts.append(self._summary_event("response.reasoning_summary_part.added", SummaryText(text="")))
        return [*ended, begun, *parts]

    def _end_item(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        if isinstance(self._open, CallStream):
            item, ended = self._open.item(self._open.last_status), self._open.end()
        else:
            item = self._open.item(status)
            ended = [*self._closing(item), self._item_event("response.output_item.done", item)]
        self._open = None
        if item is not None:
            self._done.append(item)
        return ended

    def _closing(self, item: _Item) -> list[Event]:
        assert isinstance(self._open, _Open)
        place: dict[str, Any] = {"item_id": item.id, "output_index": self._open.index}
        if isinstance(item, OutputCall):
            number = self._number()
            return [ArgumentsDoneEvent(sequence_number=number, name=item.name, arguments=item.arguments, **place)]
        if isinstance(item, OutputCustomCall):
            return [InputDoneEvent(sequence_number=self._number(), input=item.input, **place)]
        if isinstance(item, OutputReasoning) and self._summarizes:
            done = SummaryDoneEvent(sequence_number=self._number(), text=item.text, **place)
            return [done, self._summary_event("response.reasoning_summary_part.done", SummaryText(text=item.text))]
        place["content_index"] = 0
        if isinstance(item, OutputReasoning):
            return [ReasoningDoneEvent(sequence_number=self._number(), text=item.text, **place)]
        (part,) = item.content
        done = TextDoneEvent(sequence_number=self._number(), text=part.text, logprobs=part.logprobs, **place)
        return [done, self._part_event("response.content_part.done", part)]

    def _end(self, output: Output) -> list[Event]:
        is_complete = output.finish_reason == "stop"
        status = "completed" if is_complete else "incomplete"
        positions = self._logprobs.rest()
        late = self._content("", positions) if positions else []
        closing = [*late, *self._end_item(status)]
        if len(self._done) == self._num_before:
            closing += [*self._begin_item(OutputMessage, f"msg_{self._stem}"), *self._end_item(status)]
        self._response = _replace(
            self._response,
            status=status,
            output=list(self._done),
            completed_at=int(self._now()) if is_complete else None,
            incomplete_details=None if is_complete else IncompleteDetails("max_output_tokens"),
            usage=usage_of(output.usage),
        )
        return [*closing, self._response_event(f"response.{status}")]

    def _output(self, status: str) -> list[OutputItem]:
        item = None if self._open is None else self._open.item(status)
        return [*self._done, *([] if item is None else [item])]

    def _item_event(self, kind: str, item: OutputItem) -> Event:
        assert isinstance(self._open, _Open)
        return OutputItemEvent(type=kind, sequence_number=self._number(), output_index=self._open.index, item=item)

    def _part_event(self, kind: str, part: OutputText) -> ContentPartEvent:
        assert isinstance(self._open, _Open)
        return ContentPartEvent(
            type=kind,
            sequence_number=self._number(),
            item_id=self._open.item_id,
            output_index=self._open.index,
            content_index=0,
            part=part,
        )

    def _summary_event(self, kind: str, part: SummaryText) -> SummaryPartEvent:
        assert isinstance(self._open, _Open)
        return SummaryPartEvent(
            type=kind,
            sequence_number=self._number(),
            item_id=self._open.item_id,
            output_index=self._open.index,
            part=part,
        )

    def _response_event(self, kind: str) -> ResponseEvent:
        return ResponseEvent(type=kind, sequence_number=self._number(), response=self._response)

    def _number(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def encoded(events: Iterable[Event]) -> bytes:
    """Events as the bytes of server-sent events."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event)) for event in events)


def usage_of(usage: Usage) -> ResponseUsage:
    """The token counts of an answer."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            usage.cached_tokens, audio_tokens=usage.audio_tokens or UNSET, image_tokens=usage.image_tokens or UNSET
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _logprob(chosen: TokenLogprob, top: tuple[TokenLogprob, ...]) -> ResponseLogprob:
    others = [ResponseTopLogprob(_text(token), token.logprob, list(token.token)) for token in top]
    return ResponseLogprob(_text(chosen), chosen.logprob, list(chosen.token), others)


def _text(token: TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")
