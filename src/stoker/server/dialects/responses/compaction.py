"""Compaction: a summary by the model replaces a conversation, but for the user's messages.

    user, assistant, tool, assistant, user, … ──► user, user, …, compaction

The next request sends these items, or the whole conversation with the item `compaction` at the end, see `summaries`.
Only in the second case does the model still see the messages of the roles `system` and `developer`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec
from msgspec.structs import astuple
from msgspec.structs import replace as replace_fields

from stoker.chat.planning import Conversation, Thinking, planned, recalled
from stoker.core.params import SamplingParams
from stoker.engine.protocol import Output, Usage
from stoker.errors import BackendError, ContextLengthExceeded
from stoker.runtime.base import Runtime
from stoker.server.answer import Delta, Parts, Writer
from stoker.server.config import ServerConfig
from stoker.server.dialects.responses.input_items import item_of, item_parts
from stoker.server.dialects.responses.input_types import InputMessage
from stoker.server.dialects.responses.reasoning_types import Compaction
from stoker.server.dialects.responses.requests import NOT_OF_SUMMARIES, asked_conversation, summary_fields
from stoker.server.dialects.responses.sealing import sealed_summary
from stoker.server.dialects.responses.summaries import summary_of
from stoker.server.dialects.responses.types import (
    CompactingEvent,
    Event,
    OutputItemEvent,
    Response,
    ResponsesRequest,
    ResponseUsage,
)
from stoker.server.dialects.responses.writer import ResponseWriter, encoded, usage_of
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.request.fields import GenerationFields
from stoker.server.request.request import Caller, generation_request
from stoker.text.messages import Message

_QUESTION = """\
The conversation above is about to be replaced by a summary, and only the summary and the user's own messages will be \
left. Write this summary, so that the work can go on from it without a gap:
- what the user wants, with all requirements and preferences;
- what was done and found out, with the names, paths, numbers, commands and pieces of code that are still needed;
- which decisions were made, and why;
- what is unfinished, and what the next step is.
If the conversation begins with an earlier summary, keep what still matters of it. Do not go on with the work now, and \
write nothing but the summary."""
_MAX_TOKENS = 8192
"""Maximum length of a summary, in tokens, with the reasoning of a model that always reasons."""
_MIN_TOKENS = 128
"""Minimum length, in tokens, of a summary that the end of the context cuts off; a shorter one is an error."""


class CompactedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that was compacted: its items are the input of the next request."""

    id: str
    created_at: int
    """Unix time in seconds."""
    output: list[InputMessage | Compaction]
    """The user's messages, and one item `compaction` at the end."""
    usage: ResponseUsage
    object: str = "response.compaction"


def compaction_request(
    asked: Conversation, fields: GenerationFields, runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation of the summary of a conversation. Its prompt begins like the prompts of the conversation.

    Args:
        asked: the conversation, with its instructions and tools.
        fields: the fields of the request that apply to a summary.
        runtime: runtime of the model.
        caller: the client.
        config: the settings of the server.

    Raises:
        InvalidInput: a field is invalid, or the chat template refused the messages.
    """
    asked = replace(
        asked,
        messages=[*asked.messages, Message(role="user", content=_QUESTION)],
        tools=replace(asked.tools, mode="none"),
        thinking=Thinking(is_on=False, is_preference=True),
    )
    plan = planned(recalled(asked, caller.thoughts), runtime)
    sampling = SamplingParams(max_tokens=_MAX_TOKENS)
    return generation_request(fields, [plan.prompt], sampling, caller, config, plan=plan)


def triggered_request(
    wire: ResponsesRequest, messages: Sequence[Message], runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation of the summary that a request with a `compaction_trigger` asks for; see `response_request`."""
    return compaction_request(asked_conversation(wire, messages), summary_fields(wire), runtime, caller, config)


def preceding_request(
    wire: ResponsesRequest, messages: Sequence[Message], runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation of the summary before an answer, see `context_management`; and see `response_request`."""
    fields = replace_fields(wire, **dict.fromkeys(NOT_OF_SUMMARIES))
    asked = compaction_request(asked_conversation(wire, messages), fields, runtime, caller, config)
    return replace(asked, reply_id=f"{asked.reply_id}-summary")


class CompactionWriter(Writer):
    """Writes the reply with the summary.

    Args:
        reply_id: id of the reply.
        created_at: Unix time in seconds.
        messages: the conversation that is summarized.
        context_size: context size of the model, in tokens.
    """

    def __init__(self, reply_id: str, created_at: int, messages: Sequence[Message], context_size: int) -> None:
        self._reply_id = reply_id
        self._created_at = created_at
        self._messages = messages
        self._context_size = context_size

    def whole(self, answers: Sequence[Delta]) -> CompactedResponse:
        """The reply.

        Raises:
            ContextLengthExceeded: the conversation leaves no room for a summary.
            BackendError: the model wrote no summary.
        """
        (answer,) = answers
        summary, usage = _checked(answer.text, answer.output, self._context_size), answer.output.usage
        stem = self._reply_id.partition("_")[2]
        compacted = Compaction(id=f"cmp_{stem}", encrypted_content=sealed_summary(summary))
        output = [*user_items(stem, self._messages), compacted]
        return CompactedResponse(id=self._reply_id, created_at=self._created_at, output=output, usage=usage_of(usage))


class _ItemWriter(ResponseWriter):
    """Writes a response whose first item is a `compaction`.

    Args:
        response: see `ResponseWriter`.
        keep: see `ResponseWriter`.
        context_size: context size of the model, in tokens.
        keep_thought: see `ResponseWriter`.
        seals: see `ResponseWriter`.
    """

    def __init__(
        self,
        response: Response,
        keep: Callable[[Response], None],
        context_size: int,
        keep_thought: Callable[[str, str], None] | None = None,
        *,
        seals: bool = False,
    ) -> None:
        super().__init__(response, keep, keep_thought=keep_thought, seals=seals)
        self.summary = ""
        """The summary, once it is complete."""
        self._context_size = context_size
        self._texts: list[str] = []
        self._item_id = f"cmp_{self._stem}"

    def _item_events(self, delta: Delta) -> list[Event]:
        """The events of a delta of the summary; with the last one, the item ends."""
        begun = [] if self._texts else self._begun()
        self._texts.append(delta.text)
        if not delta.is_last:
            return begun
        self.summary = _checked("".join(self._texts), delta.output, self._context_size)
        item = self._compaction(self.summary)
        self._done.append(item)
        return [*begun, self._about("done", item)]

    def _begun(self) -> list[Event]:
        added = self._about("added", self._compaction(""))
        return [added, CompactingEvent(sequence_number=self._number(), item_id=self._item_id, output_index=0)]

    def _compaction(self, summary: str) -> Compaction:
        return Compaction(id=self._item_id, encrypted_content=sealed_summary(summary) if summary else "")

    def _about(self, what: str, item: Compaction) -> Event:
        kind = f"response.output_item.{what}"
        return OutputItemEvent(type=kind, sequence_number=self._number(), output_index=0, item=item)


class SummaryWriter(_ItemWriter):
    """Writes a response whose only item is a `compaction`, for a request that ends with a `compaction_trigger`."""

    def _follow(self, delta: Delta) -> list[Event]:
        events = self._item_events(delta)
        return [*events, *self._end(replace_fields(delta.output, finish_reason="stop"))] if delta.is_last else events


class CompactedAnswerWriter(_ItemWriter):
    """Writes an item `compaction` and the answer after it. The usage is the sum of both generations."""

    _summary_usage = Usage(0, 0, 0)

    def push_summary(self, delta: Delta) -> bytes:
        """The bytes of a delta of the summary. All of them precede the deltas of the answer, which `push` takes.

        For errors see `CompactionWriter.whole`.
        """
        events = self._item_events(delta)
        if delta.is_last:
            self._num_before, self._summary_usage = len(self._done), delta.output.usage
        return encoded(events)

    def _end(self, output: Output) -> list[Event]:
        counts = zip(astuple(self._summary_usage), astuple(output.usage), strict=True)
        return super()._end(replace_fields(output, usage=Usage(*(first + second for first, second in counts))))


async def summarized_first(
    summarizing: Generation, writer: CompactedAnswerWriter, answering: Callable[[str], Awaitable[Generation]]
) -> AsyncGenerator[bytes, None]:
    """The bytes of a response whose conversation is compacted before the answer.

    Args:
        summarizing: the generation of the summary. It is closed before the answer begins.
        writer: the writer of the response.
        answering: opens the generation of the answer, from the summary.

    Raises:
        StokerError: one of the generations failed, or the model wrote no summary.
    """
    yield writer.begin()
    async with summarizing:
        parts = Parts(summarizing.reader, summarizing.tool_calls)
        async for index, output in summarizing:
            if events := writer.push_summary(parts.delta(index, output)):
                yield events
    async with aclosing(answered(await answering(writer.summary), writer)) as rest:
        async for events in rest:
            yield events


async def answered(generation: Generation, writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
    """The bytes of a generation's outputs. It is closed at the end.

    Raises:
        StokerError: the generation failed.
    """
    async with generation:
        parts = Parts(generation.reader, generation.tool_calls)
        async for index, output in generation:
            if events := writer.push(parts.delta(index, output)):
                yield events


def _checked(text: str, output: Output, context_size: int) -> str:
    """The summary in an answer. For errors see `CompactionWriter.whole`."""
    usage, summary = output.usage, text.strip()
    if output.finish_reason == "length" and usage.completion_tokens < _MIN_TOKENS:
        message = (
            f"the conversation has {usage.prompt_tokens} tokens, which leaves no room for a summary in a "
            f"context of {context_size} tokens; leave out some messages"
        )
        raise ContextLengthExceeded(message, num_prompt_tokens=usage.prompt_tokens, context_size=context_size)
    if not summary:
        raise BackendError("the model wrote no summary of the conversation")
    return summary


def user_items(stem: str, messages: Sequence[Message]) -> list[InputMessage]:
    """The items of the user's messages, without summaries."""
    own = ((index, each) for index, each in enumerate(messages) if each.role == "user" and summary_of(each) is None)
    items = (item_of(item_id, part) for index, each in own for item_id, part in item_parts(f"{stem}_{index}", each))
    return [item for item in items if isinstance(item, InputMessage)]
