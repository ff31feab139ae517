"""The endpoints `POST /v1/messages` and `/v1/messages/count_tokens`. The handlers only call other modules, in order."""

from __future__ import annotations

from starlette.responses import Response

from stoker.server.answer import Asked, answer
from stoker.server.api import Call, Router
from stoker.server.dialects.anthropic.requests import counting, message_request
from stoker.server.dialects.anthropic.types import (
    COUNT_TOKENS_FIELDS,
    MESSAGES_FIELDS,
    MESSAGES_NESTED,
    CountTokensRequest,
    MessageEvent,
    MessageReply,
    MessagesRequest,
    TokenCount,
)
from stoker.server.dialects.anthropic.writer import AnthropicWriter
from stoker.server.error_types import AnthropicError
from stoker.server.errors import json_response
from stoker.server.remote_files.messages import resolve_files
from stoker.server.transport.sse import EventStream

router = Router(api="Anthropic", error=AnthropicError)


@router.endpoint(
    "POST",
    "/v1/messages",
    "Generates the next message of a conversation.",
    aliases=("/messages",),
    body=MessagesRequest,
    fields=MESSAGES_FIELDS,
    nested=MESSAGES_NESTED,
    reply=MessageReply,
    event=MessageEvent,
)
async def messages(call: Call[MessagesRequest]) -> Response | EventStream:
    served = await call.lease(call.body.model)
    caller = call.caller("msg", "_")
    await resolve_files(
        call, served.runtime.card.media, call.body.messages, "messages", served.runtime.card.media_refusal
    )
    asked = await call.off_loop_if_long(message_request, call.body, served.runtime, caller, call.config)
    asking = Asked(call.request, call.config, served, asked)
    thinking = call.body.thinking
    omits_thinking = thinking is not None and thinking.display == "omitted"
    return await answer(
        asking, lambda _: AnthropicWriter(asking, omits_thinking=omits_thinking), is_stream=bool(call.body.stream)
    )


@router.endpoint(
    "POST",
    "/v1/messages/count_tokens",
    "Counts the tokens of a conversation's prompt, and computes nothing.",
    aliases=("/messages/count_tokens",),
    body=CountTokensRequest,
    fields=COUNT_TOKENS_FIELDS,
    nested=MESSAGES_NESTED,
    reply=TokenCount,
)
async def count_tokens(call: Call[CountTokensRequest]) -> Response:
    runtime = (await call.lease(call.body.model)).runtime
    await resolve_files(call, runtime.card.media, call.body.messages, "messages", runtime.card.media_refusal)
    question = await call.off_loop(counting, call.body, runtime, call.thoughts, call.config)
    counted = await call.wait(runtime.ask(question))
    return json_response(TokenCount(counted.num_entries))
