"""Stored conversations, to which responses add their input and output. Independent of connections.

Each conversation belongs to an owner, see `access.control.owner_of`. Other owners cannot see it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stoker.errors import ConversationNotFound, InvalidInput
from stoker.server.dialects.responses.input_items import is_thought, item_of, item_parts
from stoker.server.dialects.responses.input_types import InputItem
from stoker.server.dialects.responses.shelf import Shelf, bytes_of
from stoker.server.dialects.responses.store import answer_of
from stoker.server.dialects.responses.types import OutputItem, Response
from stoker.text.messages import Message

_log = logging.getLogger(__name__)

_PREFIX = "conv_"
_MAX_PAIRS, _MAX_NAME, _MAX_VALUE = 16, 64, 512
"""Limits of metadata, as in OpenAI's API: number of pairs, and characters of a name and of a value."""
_BYTES_PER_ITEM = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a conversation, as a message that has only this item's part of the original message."""

    item_id: str
    message: Message

    @property
    def item(self) -> InputItem:
        return item_of(self.item_id, self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """An immutable version of a conversation; each change makes a new one."""

    conversation_id: str
    created_at: int
    """Unix time in seconds."""
    metadata: Mapping[str, str]
    parts: Mapping[str, Message] = field(default_factory=dict[str, Message])
    """The items by id, in their order; see `Entry`."""
    answers: frozenset[str] = frozenset()
    """Ids of the responses whose output was added."""
    num_added: int = 0
    """Number of messages that `with_messages` ever added, deleted ones included, for the ids of further items."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages for a model: calls are joined to the assistant's message before, reasoning to the one after."""
        turns: list[list[Message]] = []
        thoughts: list[Message] = []
        for message in self.parts.values():
            if is_thought(message):
                thoughts.append(message)
                continue
            if message.tool_calls and turns and turns[-1][0].role == "assistant":
                turns[-1] += [*thoughts, message]
            elif message.role == "assistant":
                turns.append([*thoughts, message])
            else:
                turns += [thoughts, [message]] if thoughts else [[message]]
            thoughts = []
        return tuple(map(_joined, [*turns, thoughts] if thoughts else turns))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The items in their order."""
        return tuple(Entry(item_id, message) for item_id, message in self.parts.items())

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        texts = sum(len(name) + len(value) for name, value in self.metadata.items())
        return _BYTES_PER_ITEM * (1 + len(self.parts)) + 2 * texts + bytes_of(self.parts.values())

    def find(self, item_id: str) -> Message | None:
        """The message of an item; None if the conversation has no such item."""
        return self.parts.get(item_id)

    def entry(self, item_id: str) -> Entry:
        """The item of this id; raises ConversationNotFound if the conversation has no such item."""
        found = self.find(item_id)
        if found is None:
            message = f"the conversation {self.conversation_id} has no item {item_id[:100]!r}"
            raise ConversationNotFound(message, conversation_id=self.conversation_id, parameter="item_id")
        return Entry(item_id, found)

    def with_messages(self, messages: Sequence[Message]) -> StoredConversation:
        """A copy of the conversation with further messages at its end."""
        stem, first = self.conversation_id.removeprefix(_PREFIX), self.num_added
        added = {
            item_id: part
            for number, message in enumerate(messages, first)
            for item_id, part in item_parts(f"{stem}_{number}", message)
        }
        return replace(self, parts={**self.parts, **added}, num_added=first + len(messages))

    def with_output(self, response_id: str, output: Sequence[OutputItem]) -> StoredConversation:
        """A copy of the conversation with the output of a response at its end; the items keep their ids."""
        added = {item.id: answer_of([item]) for item in output}
        return replace(self, parts={**self.parts, **added}, answers=self.answers | {response_id})


class Conversations:
    """Creates, finds, changes and deletes conversations.

    Args:
        shelf: stores the conversations. A change restarts the time for which a conversation is stored.
        now: returns Unix time in seconds.
    """

    def __init__(self, shelf: Shelf, now: Callable[[], float] = time.time) -> None:
        self._shelf = shelf
        self._now = now

    def create(self, owner: str, metadata: Mapping[str, str], messages: Sequence[Message]) -> StoredConversation:
        """Creates a conversation.

        Raises:
            InvalidInput: the metadata or the messages are too large.
        """
        _check(metadata)
        made = StoredConversation(
            conversation_id=f"{_PREFIX}{uuid.uuid4().hex}", created_at=int(self._now()), metadata=metadata
        )
        return self._keep(owner, made.with_messages(messages), "items")

    def get(self, owner: str, conversation_id: str, parameter: str = "conversation_id") -> StoredConversation:
        """A conversation as it is now.

        Raises:
            ConversationNotFound: the conversation was never stored, was evicted or deleted, or has another owner.
        """
        found = self._shelf.get((owner, conversation_id))
        if not isinstance(found, StoredConversation):
            message = f"the conversation {conversation_id[:100]!r} is not stored here, or no longer"
            raise ConversationNotFound(message, conversation_id=conversation_id, parameter=parameter)
        return found

    def describe(self, owner: str, conversation_id: str, metadata: Mapping[str, str]) -> StoredConversation:
        """Replaces the metadata of a conversation.

        Raises:
            ConversationNotFound: see `get`.
            InvalidInput: the metadata or the conversation with them are too large; it stays as it was.
        """
        _check(metadata)
        return self._keep(owner, replace(self.get(owner, conversation_id), metadata=metadata), "metadata")

    def add(self, owner: str, conversation_id: str, messages: Sequence[Message]) -> tuple[Entry, ...]:
        """Adds messages to a conversation, and returns their items.

        Raises:
            ConversationNotFound: see `get`.
            InvalidInput: the conversation would be too large; it stays as it was.
        """
        before = self.get(owner, conversation_id)
        return self._keep(owner, before.with_messages(messages), "items").entries[len(before.parts) :]

    def check_room(self, owner: str, conversation_id: str, messages: Sequence[Message]) -> None:
        """Checks that the input of a response can be added to a conversation.

        Raises:
            ConversationNotFound: see `get`.
            InvalidInput: the conversation would be too large.
        """
        if not self._shelf.has_room(self.get(owner, conversation_id, "conversation").with_messages(messages)):
            raise _too_large("input")

    def answered(self, owner: str, conversation_id: str, messages: Sequence[Message], response: Response) -> None:
        """Adds the input and the output of a response; does nothing if the conversation was deleted in the meantime.

        A conversation that would be too large stays as it was, and a warning is logged.
        """
        found = self._shelf.get((owner, conversation_id))
        if not isinstance(found, StoredConversation):
            return
        longer = found.with_messages(messages).with_output(response.id, response.output)
        if not self._shelf.put((owner, conversation_id), longer):
            _log.warning(
                "%s and its input are not added to %s, which would be larger than `max_stored_bytes`",
                response.id,
                conversation_id,
            )

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> StoredConversation:
        """Deletes an item of a conversation.

        Raises:
            ConversationNotFound: see `get`; or the conversation has no such item.
        """
        before = self.get(owner, conversation_id)
        gone = before.entry(item_id)
        rest = {known_id: message for known_id, message in before.parts.items() if known_id != gone.item_id}
        return self._keep(owner, replace(before, parts=rest), "item_id")

    def delete(self, owner: str, conversation_id: str) -> None:
        """Deletes a conversation; responses that belong to it stay stored.

        Raises:
            ConversationNotFound: see `get`.
        """
        self.get(owner, conversation_id)
        self._shelf.remove((owner, conversation_id))

    def _keep(self, owner: str, conversation: StoredConversation, parameter: str) -> StoredConversation:
        """Stores a conversation; raises InvalidInput if it is too large, and leaves an earlier version stored."""
        if not self._shelf.put((owner, conversation.conversation_id), conversation):
            raise _too_large(parameter)
        return conversation


def _too_large(parameter: str) -> InvalidInput:
    message = f"`{parameter}`: the conversation would be larger than this server stores (`max_stored_bytes`)"
    return InvalidInput(message, parameter=parameter)


def _joined(turn: Sequence[Message]) -> Message:
    """One message of the assistant's reasoning and text, and of the calls after it."""
    calls = tuple(call for message in turn for call in message.tool_calls)
    thoughts = "".join(message.reasoning or "" for message in turn)
    first = next((message for message in turn if not is_thought(message)), turn[0])
    return replace(first, tool_calls=calls, reasoning=thoughts or None)


def _check(metadata: Mapping[str, str]) -> None:
    if len(metadata) > _MAX_PAIRS:
        raise InvalidInput(f"`metadata` has over {_MAX_PAIRS} members", parameter="metadata")
    if any(len(name) > _MAX_NAME or len(value) > _MAX_VALUE for name, value in metadata.items()):
        message = f"in `metadata`, names have at most {_MAX_NAME} characters, and values {_MAX_VALUE}"
        raise InvalidInput(message, parameter="metadata")
