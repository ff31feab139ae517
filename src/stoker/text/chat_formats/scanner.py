"""A scanner for text that arrives in pieces. Parsers that use it are written as if the text were complete.

A parser is a generator. When a decision needs text that has not arrived, it yields, and continues when there is more.
No decision depends on where the text was split, so every split of an answer is parsed in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Waits: TypeAlias = Generator[None, None, T]
"""A generator that yields to wait for more text, and returns T."""
Emit: TypeAlias = Callable[[str], None]

FIRST_MARK, LAST_MARK = 0xD800, 0xDFFF
"""Range of code points that represent control tokens. They are surrogates, which a model's text never contains."""


def is_mark(char: str) -> bool:
    return FIRST_MARK <= ord(char) <= LAST_MARK


_SPACES = re.compile(r"\s*")


class Markers:
    """A set of strings to search for. The earliest match wins; of several at one position, the longest."""

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = sorted({marker for marker in markers if marker}, key=len, reverse=True)
        self._firsts = {marker[0] for marker in self._markers}
        self._pattern = re.compile("|".join(map(re.escape, self._markers)) or r"(?!)")
        self._longest = max(map(len, self._markers), default=0)

    def find(self, text: str, start: int) -> tuple[int, str] | None:
        """Position and text of the first marker from `start` on."""
        match = self._pattern.search(text, start)
        return None if match is None else (match.start(), match.group())

    def pending(self, text: str, start: int) -> int:
        """The position of a possible incomplete marker at the end of `text`; the length of `text` if there is none."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at] in self._firsts and any(
                len(marker) > len(text) - at and text.endswith(marker[: len(text) - at]) for marker in self._markers
            ):
                return at
        return len(text)


class Scanner:
    """The unread text of one answer, and the operations that read it."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        """Index in `_text` of the first unread character."""
        self._is_ended = False
        self._log: list[str] | None = None

    def feed(self, text: str) -> None:
        self._text, self._at = self._text[self._at :] + text, 0

    def end(self) -> None:
        """Marks the text as complete: waiting parsers take the current end as the end of the answer."""
        self._is_ended = True

    def record(self, text: str = "") -> None:
        """Starts to record the text that is read, beginning with `text`, until `recorded` or `forget`."""
        self._log = [text]

    def forget(self) -> None:
        self._log = None

    def recorded(self) -> str:
        """Stops recording; returns the text since `record`."""
        text, self._log = "".join(self._log or ()), None
        return text

    def peek(self) -> Waits[str]:
        """The next character, which stays unread; empty at the end."""
        while self._at == len(self._text) and not self._is_ended:
            yield
        return self._text[self._at : self._at + 1]

    def take(self) -> Waits[str]:
        """Reads the next character; empty at the end."""
        yield from self.peek()
        return self._advance(1)

    def takes(self, literal: str) -> Waits[bool]:
        """Reads `literal` if it comes next; returns whether it did."""
        while not self._text.startswith(literal, self._at):
            if self._is_ended or not literal.startswith(self._text[self._at : self._at + len(literal)]):
                return False
            yield
        self._advance(len(literal))
        return True

    def spaces(self) -> Waits[None]:
        """Reads white space."""
        while True:
            match = _SPACES.match(self._text, self._at)
            assert match is not None
            self._advance(match.end() - self._at)
            if self._at < len(self._text) or self._is_ended:
                return
            yield

    def match(self, pattern: re.Pattern[str]) -> Waits[str]:
        """Reads characters as long as each matches `pattern`; returns them."""
        read = ""
        while (char := (yield from self.peek())) and pattern.match(char):
            read += self._advance(1)
        return read

    def until(self, markers: Markers, emit: Emit) -> Waits[str | None]:
        """Emits the text before the first marker, then reads and returns the marker; None = the answer ended before."""
        while True:
            found = markers.find(self._text, self._at)
            pending = len(self._text) if self._is_ended else markers.pending(self._text, self._at)
            if found is not None and found[0] < pending:
                at, marker = found
                self._pass(at, emit)
                self._advance(len(marker))
                return marker
            self._pass(pending, emit)
            if self._is_ended:
                return None
            yield

    def text_until(self, markers: Markers, max_chars: int) -> Waits[tuple[str, str | None]]:
        """Reads and returns the text before the first marker, and the marker.

        The marker is None if the answer ended before, or if the text is longer than `max_chars`.
        """
        read: list[str] = []
        search = self.until(markers, read.append)
        while True:
            try:
                next(search)
            except StopIteration as stop:
                text = "".join(read)
                return text, None if len(text) > max_chars else stop.value
            if sum(map(len, read)) > max_chars:
                return "".join(read), None
            yield

    def json_value(self, emit: Emit) -> Waits[bool]:
        """Emits one JSON value unchanged. Returns whether the value is complete."""
        depth, is_string, is_escaped, has_begun = 0, False, False, False
        while char := (yield from self.peek()):
            if is_mark(char) or (depth == 0 and not is_string and char in ",]} \t\r\n"):
                break
            emit(self._advance(1))
            has_begun = True
            if is_string:
                is_string = is_escaped or char != '"'
                is_escaped = not is_escaped and char == "\\"
            elif char == '"':
                is_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
            if depth == 0 and not is_string and char in '"}]':
                return True
        return has_begun and depth == 0 and not is_string

    def _pass(self, end: int, emit: Emit) -> None:
        if end > self._at:
            emit(self._advance(end - self._at))

    def _advance(self, count: int) -> str:
        read = self._text[self._at : self._at + count]
        self._at += len(read)
        if self._log is not None:
            self._log.append(read)
        return read
