"""What becomes of every known field of OpenAI's responses endpoints, and those endpoints; it does nothing itself."""

from __future__ import annotations

from stoker.server.dialects.responses.types import (
    Reasoning,
    ResponsePromptRequest,
    ResponsesRequest,
    TextOptions,
)
from stoker.server.fields import FieldTable, Ignored, NestedTables, Refused, honoured, ignored
from stoker.server.request.policies import NOTHING_GENERATED, SHARED

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
