"""The endpoints of OpenAI's responses. The handlers only call other modules, in order, and store responses."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import msgspec
from starlette.responses import Response as HTTPResponse

from stoker.errors import InvalidInput, ResponseNotFound, StokerError, UnsupportedParameter
from stoker.runtime.registry import Lease, ServedModel
from stoker.server.answer import Asked, answer
from stoker.server.api import Call, Router
from stoker.server.dialects.responses.compaction import (
    CompactedAnswerWriter,
    CompactedResponse,
    CompactionWriter,
    SummaryWriter,
    answered,
    compaction_request,
    preceding_request,
    summarized_first,
    triggered_request,
)
from stoker.server.dialects.responses.conversations import Conversations
from stoker.server.dialects.responses.event_log import EventLog
from stoker.server.dialects.responses.input_items import input_parts, page_of
from stoker.server.dialects.responses.input_types import InputItems
from stoker.server.dialects.responses.keeping import kept_conversations, stored_responses
from stoker.server.dialects.responses.requests import (
    asked_conversation,
    compact_threshold,
    conversation_id_of,
    input_messages,
    note_format,
    response_counting,
    response_request,
    seals_reasoning,
    wants_summary,
)
from stoker.server.dialects.responses.store import ResponseStore
from stoker.server.dialects.responses.summaries import has_more_to_summarize, shown_summary
from stoker.server.dialects.responses.types import (
    COMPACTION_FIELDS,
    RESPONSE_PROMPT_FIELDS,
    RESPONSES_FIELDS,
    RESPONSES_NESTED,
    ConversationReference,
    DeletedResponse,
    Event,
    Response,
    ResponsePromptRequest,
    ResponsesRequest,
)
from stoker.server.dialects.responses.writer import ResponseWriter, new_response
from stoker.server.errors import error_event, internal_error_body, json_response
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.observe.account import Account
from stoker.server.observe.bug_log import log_bug
from stoker.server.remote_files.messages import resolve_files
from stoker.server.request.fields import GenerationFields
from stoker.server.request.request import Caller
from stoker.server.transport.sse import EventStream
from stoker.server.usage import InputTokens
from stoker.text.messages import Message

_log = logging.getLogger(__name__)

router = Router(api="OpenAI")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The resolved parts of a request: the model that answers, and the conversation."""

    served: ServedModel
    owner: str
    """Owner under which the response is stored."""
    messages: Sequence[Message]
    """The whole conversation with earlier turns, without the instructions."""
    store: ResponseStore
    conversations: Conversations
    conversation_id: str | None
    """Id of the stored conversation to which input and output are added; None = none."""
    added: Sequence[Message]
    """The messages of this request's input."""


@router.endpoint(
    "POST",
    "/v1/responses/input_tokens",
    "Counts the tokens of a response's prompt, and computes nothing.",
    aliases=("/responses/input_tokens",),
    body=ResponsePromptRequest,
    fields=RESPONSE_PROMPT_FIELDS,
    nested=RESPONSES_NESTED,
    reply=InputTokens,
)
async def input_tokens(call: Call[ResponsePromptRequest]) -> HTTPResponse:
    asked = await _understand(call)
    runtime = asked.served.runtime
    question = await call.off_loop(response_counting, call.body, asked.messages, runtime, call.thoughts)
    counted = await call.wait(runtime.ask(question))
    return json_response(InputTokens(counted.num_entries))


@router.endpoint(
    "POST",
    "/v1/responses/compact",
    "Summarizes a conversation: the reply has its user messages and a summary, as the input of the next response.",
    aliases=("/responses/compact",),
    body=ResponsePromptRequest,
    fields=COMPACTION_FIELDS,
    nested=RESPONSES_NESTED,
    reply=CompactedResponse,
)
async def compact(call: Call[ResponsePromptRequest]) -> HTTPResponse | EventStream:
    asked, caller = await _understand(call, is_input_optional=True), call.caller("resp", "_")
    runtime = asked.served.runtime
    conversation = asked_conversation(call.body, asked.messages)
    note_format(call.body)
    fields = GenerationFields(model=call.body.model)
    generating = await call.off_loop(compaction_request, conversation, fields, runtime, caller, call.config)
    writer = CompactionWriter(caller.reply_id, int(time.time()), asked.messages, runtime.card.context_size)
    return await answer(Asked(call.request, call.config, asked.served, generating), lambda _: writer, is_stream=False)


@router.endpoint(
    "POST",
    "/v1/responses",
    "Generates a response, and stores it so that it can be fetched and continued.",
    aliases=("/responses",),
    body=ResponsesRequest,
    fields=RESPONSES_FIELDS,
    nested=RESPONSES_NESTED,
    reply=Response,
    event=get_args(Event),
)
async def create(call: Call[ResponsesRequest]) -> HTTPResponse | EventStream:
    wire = call.body
    asked = await _understand(call)
    _check_kept(wire, asked)
    caller = call.caller("resp", "_")
    generating = await _generating(call, asked, caller)
    response = new_response(wire, generating, asked.served.model_id, int(time.time()))
    keep_thought, seals = caller.thoughts.keep, seals_reasoning(wire)
    if asked.conversation_id is not None:
        response = msgspec.structs.replace(response, conversation=ConversationReference(asked.conversation_id))
    if asked.store.is_off:
        response = msgspec.structs.replace(response, store=False)
    keep = partial(_converse if wire.background else _keep, asked)  # a background job's response is stored by the store
    context_size = asked.served.runtime.card.context_size
    if wants_summary(wire):
        writer = SummaryWriter(response, keep, context_size)
    elif await _is_over_threshold(call, asked):
        keep = partial(_count, caller.account, keep)
        writer = CompactedAnswerWriter(response, keep, context_size, keep_thought, seals=seals)
        return await _compact_first(call, asked, caller, writer)
    else:
        writer = ResponseWriter(response, keep, keep_thought=keep_thought, seals=seals)
    if wire.background:
        generation = await call.wait(Generation.open(asked.served, generating))
        return _begin(call, _begun(generation, writer), writer, asked)
    asking = Asked(call.request, call.config, asked.served, generating)
    return await answer(asking, lambda _: writer, is_stream=bool(wire.stream))


@router.endpoint(
    "GET",
    "/v1/responses/{response_id}",
    "Fetches a stored response, or reads the stream of one in the background again.",
    aliases=("/responses/{response_id}",),
    query={"stream": bool, "starting_after": int, "include": str, "include_obfuscation": bool},
    reply=Response,
    event=get_args(Event),
)
async def get(call: Call[None]) -> HTTPResponse | EventStream:
    store, response_id = stored_responses(call), _response_id(call)
    if call.query.get("stream") in ("true", "True", "1"):
        return _stream_of(call, store.events_of(call.owner, response_id), _number_after(call.query))
    return json_response(store.get(call.owner, response_id))


@router.endpoint(
    "DELETE",
    "/v1/responses/{response_id}",
    "Deletes a stored response; one that is in progress is canceled.",
    aliases=("/responses/{response_id}",),
    reply=DeletedResponse,
)
async def delete(call: Call[None]) -> HTTPResponse:
    stored_responses(call).delete(call.owner, _response_id(call))
    return json_response(DeletedResponse(id=_response_id(call)))


@router.endpoint(
    "POST",
    "/v1/responses/{response_id}/cancel",
    "Cancels a response that runs in the background.",
    aliases=("/responses/{response_id}/cancel",),
    reply=Response,
)
async def cancel(call: Call[None]) -> HTTPResponse:
    return json_response(await stored_responses(call).cancel(call.owner, _response_id(call)))


@router.endpoint(
    "GET",
    "/v1/responses/{response_id}/input_items",
    "Lists the input items of a stored response, earlier turns included, the newest first.",
    aliases=("/responses/{response_id}/input_items",),
    query={"limit": int, "order": str, "after": str, "include": str},
    reply=InputItems,
)
async def list_input_items(call: Call[None]) -> HTTPResponse:
    messages = stored_responses(call).input_of(call.owner, _response_id(call))
    return json_response(page_of(input_parts(_response_id(call), messages), call.query))


def _response_id(call: Call[None]) -> str:
    return call.path_parameter("response_id")


async def _understand(
    call: Call[ResponsesRequest] | Call[ResponsePromptRequest], *, is_input_optional: bool = False
) -> _Asked:
    store, conversations, wire = stored_responses(call), kept_conversations(call), call.body
    conversation_id = conversation_id_of(wire)
    served = await call.lease(wire.model)
    await resolve_files(call, served.runtime.card.media, wire.input, "input", served.runtime.card.media_refusal)
    added = input_messages(wire, partial(store.message, call.owner), is_optional=is_input_optional)
    if conversation_id is not None:
        earlier = conversations.get(call.owner, conversation_id, "conversation").messages
    else:
        earlier = _earlier(store, call.owner, wire.previous_response_id)
    if not (earlier or added):
        raise InvalidInput("there is no message in `input`, or before it", parameter="input")
    return _Asked(served, call.owner, (*earlier, *added), store, conversations, conversation_id, added)


async def _generating(call: Call[ResponsesRequest], asked: _Asked, caller: Caller) -> GenerationRequest:
    understand = triggered_request if wants_summary(call.body) else response_request
    return await call.off_loop(understand, call.body, asked.messages, asked.served.runtime, caller, call.config)


def _check_kept(wire: ResponsesRequest, asked: _Asked) -> None:
    """Checks that the server can store what the request wants to be stored.

    Raises:
        UnsupportedParameter: the request needs stored responses, and this server stores none.
        InvalidInput: the input would make the stored conversation too large.
    """
    for name, is_asked in (("store", wire.store), ("background", wire.background)):
        if is_asked and asked.store.is_off:
            message = (
                f"`{name}`: this server stores no responses (`max_stored_responses` is 0, or it has several fronts)"
            )
            raise UnsupportedParameter(message, parameter=name)
    if asked.conversation_id is not None:
        asked.conversations.check_room(asked.owner, asked.conversation_id, asked.added)


def _earlier(store: ResponseStore, owner: str, response_id: str | None) -> tuple[Message, ...]:
    if not response_id:
        return ()
    try:
        return store.conversation(owner, response_id)
    except ResponseNotFound as error:
        raise ResponseNotFound(error.message, response_id=response_id, parameter="previous_response_id") from error


async def _is_over_threshold(call: Call[ResponsesRequest], asked: _Asked) -> bool:
    """Whether the conversation is to be compacted before the answer, as `context_management` says."""
    runtime = asked.served.runtime
    threshold = compact_threshold(call.body, runtime.card.context_size)
    if threshold is None or not has_more_to_summarize(asked.messages):
        return False
    question = await call.off_loop(response_counting, call.body, asked.messages, runtime, call.thoughts)
    return (await call.wait(runtime.ask(question))).num_entries > threshold


async def _compact_first(
    call: Call[ResponsesRequest], asked: _Asked, caller: Caller, writer: CompactedAnswerWriter
) -> HTTPResponse | EventStream:
    """Answers after a summary of the conversation. A refusal of the summary is raised before a response begins."""
    wire, served, config = call.body, asked.served, call.config

    async def answering(summary: str) -> Generation:
        messages = (*asked.messages, shown_summary(summary))
        generating = await call.off_loop(response_request, wire, messages, served.runtime, caller, config)
        return await Generation.open(served, generating)

    summarizing = await call.off_loop(preceding_request, wire, asked.messages, served.runtime, caller, config)
    first = await call.wait(Generation.open(served, summarizing))
    events = summarized_first(first, writer, answering)
    if wire.background:
        return _begin(call, events, writer, asked)
    if wire.stream:
        return EventStream(_until_error(events, writer), first.close, config)
    async with first:
        await call.wait(_write(events, lambda batch: None))
    return json_response(writer.snapshot())


async def _until_error(events: AsyncGenerator[bytes, None], writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
    """The events of a response; an error becomes the last one."""
    try:
        async with aclosing(events):
            async for batch in events:
                yield batch
    except StokerError as error:
        _log.warning("a response ended with %s", error.code)
        yield writer.fail(error)


async def _begun(generation: Generation, writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
    yield writer.begin()
    async with aclosing(answered(generation, writer)) as events:
        async for batch in events:
            yield batch


def _begin(
    call: Call[ResponsesRequest], events: AsyncGenerator[bytes, None], writer: ResponseWriter, asked: _Asked
) -> HTTPResponse | EventStream:
    """Starts to answer in the background, and replies at once or with a stream; the client may return later."""
    log = EventLog() if call.body.stream else None
    work = _collect(_until_error(events, writer), writer, call.share_lease(), log)
    asked.store.start(asked.owner, writer.snapshot().id, writer.snapshot, work, asked.messages, log)
    return json_response(writer.snapshot()) if log is None else _stream_of(call, log)


def _stream_of(call: Call[Any], log: EventLog, number: int = 0) -> EventStream:
    """The stream of a response in the background, from an event on. Its end does not end the response."""
    log.check(number)

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            async for batch in log.read(number):
                yield batch
        except StokerError as error:
            yield error_event(error, call.request.scope)

    async def close() -> None:
        pass

    return EventStream(events(), close, call.config)


def _number_after(query: Mapping[str, str]) -> int:
    """The number of the first event after the one that the query names."""
    after = query.get("starting_after", "-1")
    if after != "-1" and not (after.isascii() and after.isdecimal() and len(after) < 10):
        message = f"`starting_after` must be the number of an event, not {after[:40]!r}"
        raise InvalidInput(message, parameter="starting_after")
    return int(after) + 1


def _count(account: Account, keep: Callable[[Response], None], response: Response) -> None:
    """Counts the tokens of a response with a summary, which takes two generations, and keeps the response."""
    if response.usage is not None:
        account.prompt_tokens, account.completion_tokens = response.usage.input_tokens, response.usage.output_tokens
        account.cached_tokens = response.usage.input_tokens_details.cached_tokens
    keep(response)


def _keep(asked: _Asked, response: Response) -> None:
    if response.store:
        asked.store.put(asked.owner, response, asked.messages)
    _converse(asked, response)


def _converse(asked: _Asked, response: Response) -> None:
    if asked.conversation_id is not None:
        asked.conversations.answered(asked.owner, asked.conversation_id, asked.added, response)


async def _collect(
    events: AsyncGenerator[bytes, None], writer: ResponseWriter, lease: Lease, log: EventLog | None
) -> Response:
    """Takes all events of a response, and returns the response, completed or failed."""
    tell: Callable[[bytes], None] = (lambda events: None) if log is None else log.add
    with closing(lease):
        try:
            await _write(events, tell)
        except Exception as fault:  # noqa: BLE001  # no HTTP request waits for the response, so no other border sees it
            log_bug(_log, f"the response {writer.snapshot().id} in the background", fault)
            tell(writer.break_off(StokerError(internal_error_body().error.message)))
    return writer.snapshot()


async def _write(events: AsyncGenerator[bytes, None], tell: Callable[[bytes], None]) -> None:
    """Calls `tell` with the events of a response."""
    async with aclosing(events):
        async for batch in events:
            tell(batch)
