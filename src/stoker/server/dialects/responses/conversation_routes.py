"""The endpoints of OpenAI's conversations, and their JSON types. Responses can add items too, see `routes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from starlette.responses import Response

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.server.api import Call, Router
from stoker.server.dialects.responses.conversations import Entry, StoredConversation
from stoker.server.dialects.responses.input_items import page_of
from stoker.server.dialects.responses.input_types import InputItem, InputItems
from stoker.server.dialects.responses.keeping import kept_conversations, stored_responses
from stoker.server.dialects.responses.requests import item_messages
from stoker.server.errors import json_response
from stoker.server.fields import FieldTable, honoured
from stoker.text.messages import Message


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


router = Router(api="OpenAI")

_PATH = "/v1/conversations/{conversation_id}"
_ALIAS = "/conversations/{conversation_id}"


@router.endpoint(
    "POST",
    "/v1/conversations",
    "Stores a conversation, to which responses add their input and output.",
    aliases=("/conversations",),
    body=ConversationRequest,
    fields=CONVERSATION_FIELDS,
    reply=Conversation,
)
async def create(call: Call[ConversationRequest]) -> Response:
    if stored_responses(call).is_off:
        raise UnsupportedParameter("this server stores no conversations (`max_stored_responses` is 0)")
    messages = _messages(call, call.body.items or ())
    return json_response(_reply(kept_conversations(call).create(call.owner, call.body.metadata or {}, messages)))


@router.endpoint("GET", _PATH, "Shows a stored conversation.", aliases=(_ALIAS,), reply=Conversation)
async def get(call: Call[None]) -> Response:
    return json_response(_reply(_found(call)))


@router.endpoint(
    "POST",
    _PATH,
    "Replaces the metadata of a stored conversation.",
    aliases=(_ALIAS,),
    body=ConversationUpdateRequest,
    fields=CONVERSATION_UPDATE_FIELDS,
    reply=Conversation,
)
async def update(call: Call[ConversationUpdateRequest]) -> Response:
    return json_response(
        _reply(kept_conversations(call).describe(call.owner, _conversation_id(call), call.body.metadata or {}))
    )


@router.endpoint(
    "DELETE", _PATH, "Deletes a stored conversation; its responses stay.", aliases=(_ALIAS,), reply=DeletedConversation
)
async def delete(call: Call[None]) -> Response:
    kept_conversations(call).delete(call.owner, _conversation_id(call))
    return json_response(DeletedConversation(id=_conversation_id(call)))


@router.endpoint(
    "POST",
    f"{_PATH}/items",
    "Adds items to a stored conversation.",
    aliases=(f"{_ALIAS}/items",),
    body=ConversationItemsRequest,
    fields=CONVERSATION_ITEMS_FIELDS,
    query={"include": str},
    reply=InputItems,
)
async def add_items(call: Call[ConversationItemsRequest]) -> Response:
    if not call.body.items:
        raise InvalidInput("`items` must be a list with at least one item", parameter="items")
    messages = _messages(call, call.body.items)
    return json_response(_list(kept_conversations(call).add(call.owner, _conversation_id(call), messages)))


@router.endpoint(
    "GET",
    f"{_PATH}/items",
    "Lists the items of a stored conversation, the newest first.",
    aliases=(f"{_ALIAS}/items",),
    query={"limit": int, "order": str, "after": str, "include": str},
    reply=InputItems,
)
async def list_items(call: Call[None]) -> Response:
    return json_response(page_of(list(_found(call).parts.items()), call.query))


@router.endpoint(
    "GET",
    f"{_PATH}/items/{{item_id}}",
    "Shows an item of a stored conversation.",
    aliases=(f"{_ALIAS}/items/{{item_id}}",),
    query={"include": str},
    reply=get_args(InputItem),
)
async def get_item(call: Call[None]) -> Response:
    return json_response(_found(call).entry(call.path_parameter("item_id")).item)


@router.endpoint(
    "DELETE",
    f"{_PATH}/items/{{item_id}}",
    "Deletes an item of a stored conversation.",
    aliases=(f"{_ALIAS}/items/{{item_id}}",),
    reply=Conversation,
)
async def delete_item(call: Call[None]) -> Response:
    item_id = call.path_parameter("item_id")
    return json_response(_reply(kept_conversations(call).delete_item(call.owner, _conversation_id(call), item_id)))


def _found(call: Call[None]) -> StoredConversation:
    return kept_conversations(call).get(call.owner, _conversation_id(call))


def _conversation_id(call: Call[Any]) -> str:
    return call.path_parameter("conversation_id")


def _messages(call: Call[Any], items: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    store = stored_responses(call)
    return item_messages(items, "items", lambda item_id, where: store.message(call.owner, item_id, where))


def _reply(conversation: StoredConversation) -> Conversation:
    return Conversation(
        id=conversation.conversation_id, created_at=conversation.created_at, metadata=dict(conversation.metadata)
    )


def _list(entries: Sequence[Entry]) -> InputItems:
    items = [entry.item for entry in entries]
    return InputItems(data=items, first_id=items[0].id, last_id=items[-1].id, has_more=False)
