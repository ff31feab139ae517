"""The JSON types of OpenAI's conversations, and tables of their fields. The types of items are in `types`."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.server.fields import FieldTable, honoured


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations`."""

    items: list[dict[str, Any]] | None = None
    """Messages and calls that it begins with, as in the `input` of a response."""
    metadata: dict[str, str] | None = None
    """Kept with the conversation: at most 16 texts."""


class ConversationUpdateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{conversation_id}`."""

    metadata: dict[str, str] | None = None
    """What is kept from now on."""


class ConversationItemsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{conversation_id}/items`."""

    items: list[dict[str, Any]] | None = None
    """Messages and calls, as in the `input` of a response."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A stored conversation without its items."""

    id: str
    created_at: int
    """Unix time in seconds."""
    metadata: dict[str, str]
    object: str = "conversation"


class DeletedConversation(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True
    object: str = "conversation.deleted"


CONVERSATION_FIELDS: FieldTable = honoured(ConversationRequest)
CONVERSATION_UPDATE_FIELDS: FieldTable = honoured(ConversationUpdateRequest)
CONVERSATION_ITEMS_FIELDS: FieldTable = honoured(ConversationItemsRequest)
