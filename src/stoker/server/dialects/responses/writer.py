"""What the engine gives, as a response and as the events of its stream. A whole response is where the events lead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
from starlette.types import Scope

from stoker.engine.protocol import Output, TokenLogprob, Usage
from stoker.errors import StokerError
from stoker.server.answer import Delta, Writer
from stoker.server.dialects.openai.logprobs import text_positions
from stoker.server.dialects.responses.types import (
    ContentPartEvent,
    IncompleteDetails,
    InputTokensDetails,
    OutputItemEvent,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseLogprob,
    ResponseReasoning,
    ResponsesRequest,
    ResponseTopLogprob,
    ResponseUsage,
    TextDeltaEvent,
    TextDoneEvent,
)
from stoker.server.generation import GenerationRequest

Event: TypeAlias = ResponseEvent | OutputItemEvent | ContentPartEvent | TextDeltaEvent | TextDoneEvent

_replace = msgspec.structs.replace


def new_response(wire: ResponsesRequest, asked: GenerationRequest, model_id: str, created: int) -> Response:
    """A response that has not begun, with what the request said."""
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
        max_output_tokens=asked.sampling.max_tokens,
        previous_response_id=wire.previous_response_id,
        reasoning=ResponseReasoning(effort=wire.reasoning.effort if wire.reasoning is not None else None),
        temperature=wire.temperature,
        top_logprobs=wire.top_logprobs,
        top_p=wire.top_p,
        user=wire.user,
    )


class ResponseWriter(Writer):
    """Follows one answer: the events that each step adds, and the response as it then is.

    Args:
        response: see `new_response`.
        keep: takes the response when it is complete.
        now: unix time in seconds.
    """

    def __init__(
        self,
        response: Response,
        keep: Callable[[Response], None] = lambda response: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._response = response
        self._keep = keep
        self._now = now
        self._item_id = f"msg_{response.id.partition('_')[2]}"
        self._texts: list[str] = []
        self._logprobs: list[ResponseLogprob] = []
        self._num_events = 0

    def snapshot(self) -> Response:
        """The response as it is now."""
        if self._response.output or not self._texts:
            return self._response
        return _replace(self._response, output=[self._item("in_progress")])

    def begin(self) -> bytes:
        events: list[Event] = [self._response_event("response.created")]
        self._response = _replace(self._response, status="in_progress")
        return _encoded([*events, self._response_event("response.in_progress")])

    def push(self, delta: Delta) -> bytes:
        return _encoded(self._follow(delta))

    def fail(self, error: StokerError, scope: Scope | None = None) -> bytes:
        failure = ResponseError(error.code, error.message)
        output = [self._item("incomplete")] if self._texts else []
        self._response = _replace(self._response, status="failed", error=failure, output=output)
        return _encoded([self._response_event("response.failed")])

    def whole(self, answers: Sequence[Delta]) -> Response:
        (answer,) = answers
        self._follow(answer)
        return self.snapshot()

    def _follow(self, delta: Delta) -> list[Event]:
        events: list[Event] = [] if self._texts else self._open_item()
        text, logprobs = delta.text, [_logprob(p.chosen, p.top) for p in text_positions(delta.output)]
        self._texts.append(text)
        self._logprobs += logprobs
        if text or logprobs:
            events.append(self._delta(text, logprobs))
        if delta.is_last:
            events += self._end(delta.output)
            self._keep(self.snapshot())
        return events

    def _end(self, output: Output) -> list[Event]:
        is_complete = output.finish_reason == "stop"
        status = "completed" if is_complete else "incomplete"
        item = self._item(status)
        closing = self._close_item(item)
        self._response = _replace(
            self._response,
            status=status,
            output=[item],
            completed_at=int(self._now()) if is_complete else None,
            incomplete_details=None if is_complete else IncompleteDetails("max_output_tokens"),
            usage=_usage(output.usage),
        )
        return [*closing, self._response_event(f"response.{status}")]

    def _open_item(self) -> list[Event]:
        item = OutputMessage(id=self._item_id, status="in_progress", content=[])
        return [
            OutputItemEvent(
                type="response.output_item.added", sequence_number=self._number(), output_index=0, item=item
            ),
            self._part_event("response.content_part.added", OutputText(text="")),
        ]

    def _close_item(self, item: OutputMessage) -> list[Event]:
        (part,) = item.content
        return [
            TextDoneEvent(
                sequence_number=self._number(),
                item_id=self._item_id,
                output_index=0,
                content_index=0,
                text=part.text,
                logprobs=part.logprobs,
            ),
            self._part_event("response.content_part.done", part),
            OutputItemEvent(
                type="response.output_item.done", sequence_number=self._number(), output_index=0, item=item
            ),
        ]

    def _item(self, status: str) -> OutputMessage:
        text = OutputText(text="".join(self._texts), logprobs=list(self._logprobs))
        return OutputMessage(id=self._item_id, status=status, content=[text])

    def _delta(self, text: str, logprobs: list[ResponseLogprob]) -> TextDeltaEvent:
        return TextDeltaEvent(
            sequence_number=self._number(),
            item_id=self._item_id,
            output_index=0,
            content_index=0,
            delta=text,
            logprobs=logprobs,
        )

    def _part_event(self, kind: str, part: OutputText) -> ContentPartEvent:
        return ContentPartEvent(
            type=kind,
            sequence_number=self._number(),
            item_id=self._item_id,
            output_index=0,
            content_index=0,
            part=part,
        )

    def _response_event(self, kind: str) -> ResponseEvent:
        return ResponseEvent(type=kind, sequence_number=self._number(), response=self._response)

    def _number(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _encoded(events: Iterable[Event]) -> bytes:
    """The bytes of some events on the connection."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event)) for event in events)


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(0),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


def _logprob(chosen: TokenLogprob, top: tuple[TokenLogprob, ...]) -> ResponseLogprob:
    others = [ResponseTopLogprob(_text(token), token.logprob, list(token.token)) for token in top]
    return ResponseLogprob(_text(chosen), chosen.logprob, list(chosen.token), others)


def _text(token: TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")
