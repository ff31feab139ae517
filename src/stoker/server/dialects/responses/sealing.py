"""Encodes reasoning as one opaque text (`encrypted_content`), for clients that store conversations themselves.

Such clients send back only this text. It is not encrypted: the client that gets the text also gets the reasoning.
"""

from __future__ import annotations

import base64
from typing import Final

_PREFIX: Final = "stoker-1:"


def sealed(reasoning: str) -> str:
    """The reasoning as one opaque text."""
    return _PREFIX + base64.urlsafe_b64encode(reasoning.encode()).decode()


def unsealed(text: str) -> str | None:
    """The reasoning in an opaque text; None if another server made the text."""
    if not text.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), b"-_", validate=True).decode()
    except ValueError:
        return None
