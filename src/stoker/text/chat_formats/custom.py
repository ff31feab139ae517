"""The text that a call gives to a custom tool, out of the call's arguments as they are written."""

from __future__ import annotations

import json
import re

from stoker.text.messages import Json

INPUT = "input"
"""The one argument of a custom tool, as models see it."""

_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u])))*',
    re.DOTALL,
)
"""Characters and whole escape sequences. The first half of a pair of surrogates waits for what follows."""


class CustomInput:
    """Passes on the text of the argument while the JSON of all arguments arrives."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False

    def push(self, arguments: str) -> str:
        """Takes a piece of the JSON; returns what it adds to the text."""
        self._held += arguments
        if not self._has_begun:
            found = _OPENING.match(self._held)
            if found is None:
                return ""
            self._has_begun = True
            self._held = self._held[found.end() :]
        found = _WHOLE.match(self._held)
        assert found is not None
        self._held = self._held[found.end() :]
        return _decoded(found[0])

    def end(self) -> str:
        """What is left when the call is complete: everything, where the arguments are not a text called `input`."""
        if self._has_begun:
            return ""
        try:
            values: Json = json.loads(self._held)
        except ValueError:
            return self._held
        value = values.get(INPUT) if isinstance(values, dict) else None
        return value if isinstance(value, str) else self._held


def _decoded(escaped: str) -> str:
    try:
        return json.loads(f'"{escaped}"', strict=False).encode("utf-8", "replace").decode()
    except ValueError:
        return escaped
