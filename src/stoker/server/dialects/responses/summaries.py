"""Summaries in conversations: converts items `compaction` to messages and back. Writes no summaries.

An item has the summary as one opaque text, see `sealing`. In messages, a summary is a user message, because every chat
template takes one anywhere; its `extra` has the plain summary, which `plain_messages` removes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.server.dialects.responses.sealing import unsealed_summary
from stoker.text.messages import Message, message_from_dict

_KINDS = ("compaction", "compaction_summary")
"""Types of the item; the second one is an older name."""
SUMMARY = "compacted_summary"
"""Key in `Message.extra`: the plain summary."""
_SUMMARIZED = ("assistant", "tool", "function")
"""Roles of the messages that a later summary replaces."""


def summary_in(item: Mapping[str, Any]) -> str | None:
    """The summary in an item; None if it is another item, or another server made it."""
    opaque = item.get("encrypted_content")
    if item.get("type") not in _KINDS or not isinstance(opaque, str):
        return None
    return unsealed_summary(opaque)


def summary_message(summary: str) -> dict[str, Any]:
    """The chat message that shows a summary to the model."""
    content = f"This is a summary of our conversation so far. It replaces what you wrote in it.\n\n{summary}"
    return {"role": "user", "content": content, SUMMARY: summary}


def shown_summary(summary: str) -> Message:
    """The message that shows a summary to the model."""
    return message_from_dict(summary_message(summary), "summary")


def summary_of(message: Message) -> str | None:
    """The plain summary that a message shows; None for other messages."""
    summary = message.extra.get(SUMMARY)
    return summary if isinstance(summary, str) else None


def has_more_to_summarize(messages: Sequence[Message]) -> bool:
    """Whether a summary would replace answers or results of tools."""
    return any(each.role in _SUMMARIZED for each in since_summary(messages))


def since_summary(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without those that the last summary replaces: earlier summaries, answers and results of tools."""
    last = max((index for index, message in enumerate(messages) if summary_of(message) is not None), default=0)
    kept = (each for each in messages[:last] if each.role not in _SUMMARIZED and summary_of(each) is None)
    return [*kept, *messages[last:]]
