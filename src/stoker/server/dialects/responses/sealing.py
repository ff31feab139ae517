"""Reasoning as one opaque text, for clients that keep conversations themselves and send back nothing else of it.

Nothing is secret: the client that gets the text also gets the reasoning.
"""

from __future__ import annotations

import base64
from typing import Final

_PREFIX: Final = "stoker-1:"


def sealed(reasoning: str) -> str:
    """The reasoning as one text."""
    return _PREFIX + base64.urlsafe_b64encode(reasoning.encode()).decode()


def unsealed(text: str) -> str | None:
    """The reasoning in such a text; None for a text of another server."""
    if not text.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), b"-_", validate=True).decode()
    except ValueError:
        return None
