"""Extracts the text for a custom tool from the JSON arguments of a call, while they are generated."""

from __future__ import annotations

import json
import re

from stoker.text.messages import Json

INPUT = "input"
"""Name of the only argument of a custom tool, which models see as a function."""

_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
CHARACTERS = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u])))*',
    re.DOTALL,
)
"""Characters and complete escapes. The first half of a surrogate pair matches only when the next character is known."""


class CustomInput:
    """Decodes the text of the argument `input` of one call, while the JSON of its arguments arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False

    def push(self, arguments: str) -> str:
        """Takes the next piece of the JSON; returns the text that it adds."""
        self._held += arguments
        if not self._has_begun:
            found = _OPENING.match(self._held)
            if found is None:
                return ""
            self._has_begun = True
            self._held = self._held[found.end() :]
        found = CHARACTERS.match(self._held)
        assert found is not None
        self._held = self._held[found.end() :]
        return decoded(found[0])

    def end(self) -> str:
        """The remaining text when the call is complete. If the JSON is not `{"input": text}`, this is all of it."""
        if self._has_begun:
            return ""
        try:
            values: Json = json.loads(self._held)
        except (ValueError, RecursionError):
            return self._held
        value = values.get(INPUT) if isinstance(values, dict) else None
        return value if isinstance(value, str) else self._held


def decoded(escaped: str) -> str:
    """The text of a part of a JSON string that `CHARACTERS` matches."""
    try:
        return json.loads(f'"{escaped}"', strict=False).encode("utf-8", "replace").decode()
    except ValueError:
        return escaped
