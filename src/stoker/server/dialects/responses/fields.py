"""What becomes of every known field of OpenAI's responses endpoints, and those endpoints; it does nothing itself."""

from __future__ import annotations

from stoker.server.dialects.openai.fields import NOTHING_GENERATED, SHARED
from stoker.server.dialects.openai.types import InputTokens
from stoker.server.dialects.responses.types import (
    ArgumentsDoneEvent,
    ContentPartEvent,
    DeletedResponse,
    InputItems,
    OutputItemEvent,
    PieceEvent,
    Reasoning,
    ReasoningDoneEvent,
    Response,
    ResponseEvent,
    ResponsePromptRequest,
    ResponsesRequest,
    TextDeltaEvent,
    TextDoneEvent,
    TextOptions,
)
from stoker.server.fields import Endpoint, FieldTable, Ignored, NestedTables, Refused, honoured, ignored

_OWN: FieldTable = {
    "n": Refused("one response has one answer", (1,)),
    "response_format": Refused("the responses API has it as `text.format`", ({"type": "text"},)),
    "max_tool_calls": Ignored("it counts calls of built-in tools, of which there are none"),
    "conversation": Refused("conversations are not kept as such; go on with `previous_response_id`"),
    "prompt": Refused("there are no stored prompt templates"),
    "truncation": Ignored("a prompt that is too long is refused, never cut"),
    "context_management": Refused("a prompt is never cut; send a shorter one", ([],)),
    "logprobs": Refused('ask for them with `include: ["message.output_text.logprobs"]`', (False,)),
    "background_options": Ignored("what runs in the background begins as soon as there is room"),
    "image": Ignored("images are refused"),
    "personality": Ignored("local models have no such setting"),
    "access_programs": Ignored("there are no such programs"),
    "stream_options": Ignored("events are never padded, and the last one always has the token counts"),
}

_SUMMARY = Refused("what the model thought is not told apart yet", ("",))

RESPONSES_NESTED: NestedTables = {
    "reasoning": honoured(Reasoning, {"summary": _SUMMARY, "generate_summary": _SUMMARY}),
    "text": honoured(
        TextOptions,
        {
            "verbosity": Ignored("local models have no such setting"),
        },
    ),
}
RESPONSES_FIELDS: FieldTable = honoured(ResponsesRequest, SHARED, _OWN)
RESPONSE_PROMPT_FIELDS: FieldTable = honoured(
    ResponsePromptRequest, ignored(ResponsesRequest, NOTHING_GENERATED), SHARED, _OWN
)

CREATE = Endpoint(
    api="OpenAI",
    method="POST",
    path="/v1/responses",
    aliases=("/responses",),
    summary="Answers, and keeps the answer to be fetched and gone on from.",
    request=ResponsesRequest,
    fields=RESPONSES_FIELDS,
    nested=RESPONSES_NESTED,
    reply=Response,
    event=(
        ResponseEvent,
        OutputItemEvent,
        ContentPartEvent,
        TextDeltaEvent,
        TextDoneEvent,
        PieceEvent,
        ReasoningDoneEvent,
        ArgumentsDoneEvent,
    ),
)
COUNT = Endpoint(
    api="OpenAI",
    method="POST",
    path="/v1/responses/input_tokens",
    aliases=("/responses/input_tokens",),
    summary="Counts the tokens of a response's prompt, and computes nothing.",
    request=ResponsePromptRequest,
    fields=RESPONSE_PROMPT_FIELDS,
    nested=RESPONSES_NESTED,
    reply=InputTokens,
)
GET = Endpoint(
    api="OpenAI",
    method="GET",
    path="/v1/responses/{response_id}",
    aliases=("/responses/{response_id}",),
    summary="Fetches a stored response.",
    reply=Response,
)
DELETE = Endpoint(
    api="OpenAI",
    method="DELETE",
    path="/v1/responses/{response_id}",
    aliases=("/responses/{response_id}",),
    summary="Forgets a stored response; one that is in progress is ended.",
    reply=DeletedResponse,
)
CANCEL = Endpoint(
    api="OpenAI",
    method="POST",
    path="/v1/responses/{response_id}/cancel",
    aliases=("/responses/{response_id}/cancel",),
    summary="Ends a response that runs in the background.",
    reply=Response,
)

INPUT_ITEMS = Endpoint(
    api="OpenAI",
    method="GET",
    path="/v1/responses/{response_id}/input_items",
    aliases=("/responses/{response_id}/input_items",),
    summary="Lists what a stored response answers, earlier turns included, the newest first.",
    query={"limit": int, "order": str, "after": str, "include": str},
    reply=InputItems,
)

ENDPOINTS = (COUNT, CREATE, GET, DELETE, CANCEL, INPUT_ITEMS)
