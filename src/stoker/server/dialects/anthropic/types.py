"""The JSON of Anthropic's messages and models endpoints; types only.

In requests `None` means "not given". What happens to fields that are not here is in `anthropic_fields`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.request.fields import Int, Lora


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    user_id: str | None = None
    """Requests of one user share one fair share of the machine."""


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    effort: str | None = None
    """Given to the chat template as `reasoning_effort`."""


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    """Text, and what answers were made of before: `translate.anthropic` reads them. A last message of the assistant is
    continued."""
    system: str | list[dict[str, Any]] | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountTokensRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Int | None = None
    """Must be given."""
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    metadata: Metadata | None = None
    cache_prompt: bool | None = None
    """An addition of ours, like the next one: false = nothing that others left is used, and nothing is left."""
    lora: Lora | None = None
    """With which adapters."""


# Replies


class TextBlock(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    type: str = "text"


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The prompt has the sum of the first three."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int = 0
    """Always 0: keeping a prefix costs nothing, so nothing is counted for it."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were in the cache."""
    output_tokens: int


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; in a stream's `message_start`, one without content."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[TextBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    max_input_tokens: int | UnsetType = UNSET
    """Prompt and answer together; this and `max_tokens` are there if it is loaded."""
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
    content_block: TextBlock


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta"):
    text: str


class BlockDelta(msgspec.Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: TextDelta


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
