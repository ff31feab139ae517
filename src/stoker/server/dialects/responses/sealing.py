"""Encodes reasoning and summaries as one opaque text (`encrypted_content`), for clients that store conversations.

Such clients send back only this text. It is not encrypted, only encoded in base64: the client that gets the text also
gets the reasoning, and a summary tells a client nothing that it did not send or get before.
"""

from __future__ import annotations

import base64
from typing import Final

_PREFIX: Final = "stoker-1:"
_SUMMARY_PREFIX: Final = "stoker-summary-1:"


def sealed(reasoning: str) -> str:
    """The reasoning as one opaque text."""
    return _encoded(_PREFIX, reasoning)


def unsealed(text: str) -> str | None:
    """The reasoning in an opaque text; None if another server made the text."""
    return _decoded(_PREFIX, text)


def sealed_summary(summary: str) -> str:
    """The summary of a conversation as one opaque text."""
    return _encoded(_SUMMARY_PREFIX, summary)


def unsealed_summary(text: str) -> str | None:
    """The summary in an opaque text; None if another server made the text."""
    return _decoded(_SUMMARY_PREFIX, text)


def _encoded(prefix: str, text: str) -> str:
    return prefix + base64.urlsafe_b64encode(text.encode()).decode()


def _decoded(prefix: str, text: str) -> str | None:
    if not text.startswith(prefix):
        return None
    try:
        return base64.b64decode(text.removeprefix(prefix), b"-_", validate=True).decode()
    except ValueError:
        return None
