"""Where a server keeps responses and conversations: within the same bounds, for all requests."""

from __future__ import annotations

from typing import Any

from stoker.server.api import Call
from stoker.server.dialects.responses.conversations import Conversations
from stoker.server.dialects.responses.store import ResponseStore


def stored_responses(call: Call[Any]) -> ResponseStore:
    """The responses that this server keeps."""
    return call.server.part(ResponseStore, lambda: ResponseStore(call.config))


def kept_conversations(call: Call[Any]) -> Conversations:
    """The conversations that this server keeps."""
    return call.server.part(Conversations, lambda: Conversations(stored_responses(call).shelf))
