"""Removes lines that change with every request from the beginning of a system prompt, for the sake of the prefix cache.

Some agents begin the system prompt with a line that is never the same twice: a billing header, the time, a session id.
The KV cache of a token depends on all tokens before it, so nothing after such a line can be reused. Ignoring the line
in the cache's *comparison* would be wrong, since the KV cache after it really differs. But it can be removed from the
*prompt*, if the server's settings have a pattern for it. There are no built-in patterns, and without patterns, prompts
are unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stoker.errors import ConfigError
from stoker.text.messages import Content, Message, TextPart

_MAX_LINE = 4096
"""Maximum length of a header line, in characters. It also limits the backtracking of a pattern."""
_ROLES = frozenset({"system", "developer"})


class VolatileHeaders:
    """Regular expressions for volatile lines at the beginning of a system prompt.

    Args:
        patterns: regular expressions in Python's syntax. A line is dropped if a pattern matches the whole line, and all
            lines before it were dropped.

    Raises:
        ConfigError: a pattern is not a regular expression.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]

    def drop(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation without volatile lines at the beginning of its first message, if that is a system prompt."""
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
        """The text after its leading volatile lines; empty if it has no other lines."""
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
