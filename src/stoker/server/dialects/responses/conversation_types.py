"""The JSON types of OpenAI's conversations, and tables of their fields. The types of items are in `types`."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.server.fields import FieldTable, honoured


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations`."""

    items: list[dict[str, Any]] | None = None
    """Initial items: messages and calls, as in the `input` of a response."""
    metadata: dict[str, str] | None = None
    """Texts that are stored with the conversation, at most 16."""


class ConversationUpdateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{conversation_id}`."""

    metadata: dict[str, str] | None = None
    """Metadata that replace the stored ones."""


class ConversationItemsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/conversations/{conversation_id}/items`."""

    items: list[dict[str, Any]] | None = None
    """Items to add: messages and calls, as in the `input` of a response."""


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
