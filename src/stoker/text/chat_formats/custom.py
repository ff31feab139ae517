"""Extracts the text for a custom tool from the JSON arguments of a call, while they are generated."""

from __future__ import annotations

import json
import re

from stoker.text.messages import Json

INPUT = "input"
"""Name of the only argument of a custom tool, which models see as a function."""

_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_MAX_OPENING_CHARS = 256  # text after a longer opening is decoded when the call is complete
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
        self._others: list[str] = []  # pieces of JSON without `_OPENING`

    def push(self, arguments: str) -> str:
        """Takes the next piece of the JSON; returns the text that it adds."""
        if self._others:
            self._others.append(arguments)
            return ""
        self._held += arguments
        if not self._has_begun:
            found = _OPENING.match(self._held)
            if found is None:
                self._others += [self._held] if len(self._held) > _MAX_OPENING_CHARS else []
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
        text = "".join(self._others) or self._held
        try:
            values: Json = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return value if isinstance(values, dict) and isinstance(value := values.get(INPUT), str) else text


def decoded(escaped: str) -> str:
    """The text of a part of a JSON string that `CHARACTERS` matches."""
    try:
        return json.loads(f'"{escaped}"', strict=False).encode("utf-8", "replace").decode()
    except ValueError:
        return escaped
