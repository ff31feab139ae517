"""The JSON types of Anthropic's messages and models, and tables of their fields.

In requests `None` means "not given". The tables at the end honor, refuse or ignore each known field.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stoker.server.fields import FieldTable, Ignored, NestedTables, Refused, honoured
from stoker.server.request.fields import Int, Lora


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str | None = None
    """Name of the user: without an API key, all requests of one user get one fair share of the machine."""


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    effort: str | None = None
    """Given to the chat template as `reasoning_effort`."""
    format: dict[str, Any] | None = None
    """`{"type": "json_schema", "schema": …}`: the answer is JSON of this schema."""


class ThinkingConfig(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    """`enabled`, `disabled`, or `adaptive` for the default of the chat template."""
    budget_tokens: Int | None = None
    """Maximum number of tokens of reasoning."""
    display: str | None = None
    """`omitted`: thinking blocks have no text."""


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    """The conversation, with blocks of text, images, documents, thinking, tool calls and tool results. The model
    continues a last message of the assistant."""
    system: str | list[dict[str, Any]] | None = None
    output_config: OutputConfig | None = None
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, each with a name, a description and an `input_schema`."""
    tool_choice: dict[str, Any] | None = None
    """`auto`, `any`, `tool` with a name, or `none`; with `disable_parallel_tool_use`, at most one call."""
    thinking: ThinkingConfig | None = None
    """Whether the model reasons before it answers."""


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Int | None = None
    """Maximum number of tokens of the answer; required."""
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    metadata: Metadata | None = None
    cache_prompt: bool | None = None
    """False: the prefix cache is neither read nor written (an addition of this server)."""
    session_id: str | None = None
    """Name of the conversation, whose KV cache is evicted last for a while (an addition of this server)."""
    lora: Lora | None = None
    """LoRA adapters to apply, by name (an addition of this server)."""
    output_format: dict[str, Any] | None = None
    """Older form of `output_config.format`."""


# Replies


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    """The model's reasoning before the answer."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    """A call of a function that the client runs."""

    id: str
    name: str
    input: Raw
    """A JSON object."""


Block: TypeAlias = ThinkingBlock | TextBlock | ToolUseBlock


class OutputTokensDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The sum of the three input counts is the length of the prompt."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int = 0
    """Always 0, because storing a prefix in the cache costs nothing."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were in the cache."""
    output_tokens: int
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET
    """Present if the model reasoned."""


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; in the event `message_start`, an answer without content."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    display_name: str
    created_at: str
    """Time in RFC 3339."""
    max_input_tokens: int | UnsetType = UNSET
    """Size of the context, for prompt and answer together; this field and `max_tokens` are present if the model is
    loaded."""
    max_tokens: int | UnsetType = UNSET
    lifecycle: str = "active"
    type: str = "model"


class AnthropicModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


# Events of a stream


class MessageStart(msgspec.Struct, frozen=True, tag="message_start"):
    message: MessageReply


class BlockStart(msgspec.Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag="signature_delta"):
    signature: str


class InputJSONDelta(msgspec.Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJSONDelta


class BlockStop(msgspec.Struct, frozen=True, tag="content_block_stop"):
    index: int


class Ending(msgspec.Struct, frozen=True):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag="message_delta"):
    delta: Ending
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag="message_stop"):
    pass


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    pass


MessageEvent: TypeAlias = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


_NOTHING_BILLED = "nothing is billed here"
_TAKEN_AS_SENT = "the conversation is used as sent: nothing is cleared or summarized"

_SHARED: FieldTable = {
    "container": Refused("nothing is executed here"),
    "mcp_servers": Refused("this server does not call other servers", ([],)),
    "context_management": Ignored(_TAKEN_AS_SENT),
    "compaction": Ignored(_TAKEN_AS_SENT),
    "thread": Refused("conversations are not stored"),
    "fallbacks": Ignored("the model that was asked for answers, or the request fails"),
    "fallback_credit_token": Ignored(_NOTHING_BILLED),
    "billing_policy": Ignored(_NOTHING_BILLED),
    "cache_control": Ignored("shared prefixes are cached automatically"),
    "service_tier": Ignored("there is one tier"),
    "speed": Ignored("there is one speed"),
    "inference_geo": Ignored("everything is computed on this machine"),
    "diagnostics": Ignored("there is nothing to diagnose"),
    "user_profile_id": Ignored("there are no profiles"),
    "workspace_id": Ignored("there are no workspaces"),
    "betas": Ignored("all features are always available"),
}

_UNCOUNTED: FieldTable = dict.fromkeys(
    MessagesRequest.__struct_fields__, Ignored("it does not change how many tokens a prompt has")
)

MESSAGES_NESTED: NestedTables = {
    "output_config": honoured(
        OutputConfig,
        {
            "task_budget": Ignored("the model does not get its remaining token budget"),
        },
    )
}
MESSAGES_FIELDS: FieldTable = honoured(MessagesRequest, _SHARED)
COUNT_TOKENS_FIELDS: FieldTable = honoured(CountTokensRequest, _UNCOUNTED, _SHARED)
