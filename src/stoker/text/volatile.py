"""Takes lines that change with every request off the head of a system prompt. It decides nothing about caching.

Some agents put a line there that is never the same twice: a billing header, the time, a session's id. The KV of a
prompt depends on every token before it, so such a line makes everything after it unlike all earlier prompts. It cannot
be left out of the *comparison* alone: the KV after it really differs. It can be left out of the *prompt*, if the
server's settings say so. This module knows no pattern of its own, and without patterns nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stoker.errors import ConfigError
from stoker.text.messages import Content, Message, TextPart

_MAX_LINE = 4096
"""Maximum length of a line: a longer one is no header, and would give a pattern too much to backtrack over."""
_ROLES = frozenset({"system", "developer"})


class VolatileHeaders:
    """Regular expressions for whole lines.

    Args:
        patterns: Python's syntax. A line is dropped if one of them matches all of it, and every line before it was
            dropped too.

    Raises:
        ConfigError: one of them is no regular expression.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]

    def drop(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation without volatile lines at the head of its first message, if that is a system prompt."""
        if not self._patterns or not messages or messages[0].role not in _ROLES:
            return messages
        first = messages[0]
        content = self._without_headers(first.content)
        return messages if content == first.content else (replace(first, content=content), *messages[1:])

    def _without_headers(self, content: Content) -> Content:
        if not isinstance(content, tuple):
            return None if content is None else self._rest_of(content)
        for index, part in enumerate(content):
            rest = self._rest_of(part.text)
            if rest or not part.text:
                return (TextPart(rest), *content[index + 1 :])
        return ()

    def _rest_of(self, text: str) -> str:
        """The rest of a text without its volatile lines; empty if it had no other lines."""
        while text:
            line, _, rest = text.partition("\n")
            if len(line) > _MAX_LINE or not any(pattern.fullmatch(line.rstrip("\r")) for pattern in self._patterns):
                break
            text = rest
        return text


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        message = f"--volatile-header {pattern!r} is not a regular expression: {error}"
        raise ConfigError(message, key="volatile_headers") from error
