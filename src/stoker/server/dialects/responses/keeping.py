"""The server's stores for responses and conversations, which share one shelf and its limits."""

from __future__ import annotations

from typing import Any

from stoker.server.api import Call
from stoker.server.dialects.responses.conversations import Conversations
from stoker.server.dialects.responses.store import ResponseStore


def stored_responses(call: Call[Any]) -> ResponseStore:
    """The server's store for responses."""
    return call.server.part(ResponseStore, lambda: ResponseStore(call.config))


def kept_conversations(call: Call[Any]) -> Conversations:
    """The server's store for conversations."""
    return call.server.part(Conversations, lambda: Conversations(stored_responses(call).shelf))
