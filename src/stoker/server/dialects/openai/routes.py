"""The endpoints of OpenAI's chat completions and completions. The handlers only call other modules, in order."""

from __future__ import annotations

from starlette.responses import Response

from stoker.engine.question_messages import EndReasoning
from stoker.errors import InvalidInput
from stoker.server.answer import Asked, answer
from stoker.server.api import Call, Router
from stoker.server.dialects.openai.requests import chat_request, completion_request
from stoker.server.dialects.openai.types import (
    COMPLETION_FIELDS,
    CONTROL_FIELDS,
    STREAM_NESTED,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    CompletionRequest,
    ControlReply,
    ControlRequest,
)
from stoker.server.dialects.openai.writer import ChatWriter, CompletionWriter
from stoker.server.errors import json_response
from stoker.server.remote_files.messages import resolve_files
from stoker.server.request.chat import (
    CHAT_FIELDS,
    CHAT_PROMPT_FIELDS,
    ChatCompletionRequest,
    ChatPromptRequest,
    StreamOptions,
    chat_counting,
)
from stoker.server.transport.sse import EventStream
from stoker.server.usage import InputTokens

router = Router(api="OpenAI")


@router.endpoint(
    "POST",
    "/v1/chat/completions",
    "Generates the next message of a conversation.",
    aliases=("/chat/completions",),
    body=ChatCompletionRequest,
    fields=CHAT_FIELDS,
    nested=STREAM_NESTED,
    reply=ChatCompletion,
    event=ChatCompletionChunk,
)
async def chat_completions(call: Call[ChatCompletionRequest]) -> Response | EventStream:
    served = await call.lease(call.body.model)
    caller = call.caller("chatcmpl")
    await resolve_files(
        call, served.runtime.card.media, call.body.messages, "messages", served.runtime.card.media_refusal
    )
    asked = await call.off_loop_if_long(chat_request, call.body, served.runtime, caller, call.config)
    asking, options = Asked(call.request, call.config, served, asked), _stream_options(call.body)
    has_timings = bool(call.body.timings_per_token)
    return await answer(
        asking,
        lambda generation: ChatWriter(asking, generation, options, has_timings=has_timings),
        is_stream=bool(call.body.stream),
    )


@router.endpoint(
    "POST",
    "/v1/chat/completions/input_tokens",
    "Counts the tokens of a conversation's prompt, and computes nothing.",
    aliases=("/chat/completions/input_tokens",),
    body=ChatPromptRequest,
    fields=CHAT_PROMPT_FIELDS,
    reply=InputTokens,
)
async def chat_input_tokens(call: Call[ChatPromptRequest]) -> Response:
    runtime = (await call.lease(call.body.model)).runtime
    await resolve_files(call, runtime.card.media, call.body.messages, "messages", runtime.card.media_refusal)
    question = await call.off_loop(chat_counting, call.body, runtime, call.thoughts)
    counted = await call.wait(runtime.ask(question))
    return json_response(InputTokens(counted.num_entries))


@router.endpoint(
    "POST",
    "/v1/chat/completions/control",
    "Ends the reasoning of a reply that is being written and was asked for with `reasoning_control`.",
    aliases=("/chat/completions/control",),
    body=ControlRequest,
    fields=CONTROL_FIELDS,
    reply=ControlReply,
)
async def control(call: Call[ControlRequest]) -> Response:
    if call.body.action != "reasoning_end":
        raise InvalidInput(f"`action` must be reasoning_end, not {call.body.action!r}", parameter="action")
    runtime = (await call.lease(call.body.model)).runtime
    ended = await call.wait(runtime.ask(EndReasoning(call.body.id)))
    if ended.num_choices:
        return json_response(ControlReply(success=True))
    message = "no reply of this id is reasoning, or its request lacks `reasoning_control`"
    return json_response(ControlReply(success=False, message=message))


@router.endpoint(
    "POST",
    "/v1/completions",
    "Generates text for a prompt.",
    aliases=("/completions",),
    body=CompletionRequest,
    fields=COMPLETION_FIELDS,
    nested=STREAM_NESTED,
    reply=Completion,
    event=CompletionChunk,
)
async def completions(call: Call[CompletionRequest]) -> Response | EventStream:
    served = await call.lease(call.body.model)
    asked = completion_request(call.body, served.runtime.card, call.caller("cmpl"), call.config)
    asking, options = Asked(call.request, call.config, served, asked), _stream_options(call.body)
    has_logprobs, has_timings = asked.sampling.logprobs is not None, bool(call.body.timings_per_token)
    return await answer(
        asking,
        lambda generation: CompletionWriter(
            asking, generation, options, has_logprobs=has_logprobs, has_timings=has_timings
        ),
        is_stream=bool(call.body.stream),
    )


def _stream_options(wire: ChatCompletionRequest | CompletionRequest) -> StreamOptions | None:
    return (wire.stream_options or StreamOptions()) if wire.stream else None
