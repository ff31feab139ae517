"""Parses an answer into reasoning, content and tool calls during generation. Independent of tokens and wire formats."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import cast

from stoker.text.chat_formats.calls import Calls, NotACall
from stoker.text.chat_formats.events import CallArguments, Content, Event, Reasoning
from stoker.text.chat_formats.scanner import FIRST_MARK, Markers, Scanner, Waits
from stoker.text.chat_formats.shapes import AnyShape, with_marks
from stoker.text.chat_formats.table import Format
from stoker.text.messages import Json


class Marks:
    """Represents control tokens as code points that cannot occur in text.

    So text that only spells a marker is not mistaken for the control token.

    Args:
        tokens: the spellings of the markers that are single tokens of the vocabulary.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        longest_first = sorted(set(tokens), key=len, reverse=True)
        self._marks = {token: chr(FIRST_MARK + index) for index, token in enumerate(longest_first)}
        self._tokens = {ord(mark): token for token, mark in self._marks.items()}
        self._dropped = dict.fromkeys(self._tokens, "")

    def mark(self, token: str) -> str:
        """The code point of a token."""
        return self._marks[token]

    def joined(self, text: str, marks: Sequence[tuple[int, str]]) -> str:
        """The text with the code points of tokens inserted at their offsets; unknown tokens are inserted as spelled."""
        pieces: list[str] = []
        start = 0
        for offset, token in marks:
            pieces += text[start:offset], self._marks.get(token, token)
            start = offset
        return "".join([*pieces, text[start:]])

    def encode(self, marker: str) -> str:
        """A marker with its tokens replaced by their code points."""
        for token, mark in self._marks.items():
            marker = marker.replace(token, mark)
        return marker

    def spelled(self, text: str) -> str:
        """The text with code points replaced by the tokens' spellings."""
        return text.translate(self._tokens)

    def dropped(self, text: str) -> str:
        """The text without code points of tokens."""
        return text.translate(self._dropped)


class Reader:
    """Parses one answer incrementally. The events are equivalent, however the text is split into pieces.

    Args:
        chat_format: the format in which the model writes.
        tools: the JSON schema of each offered tool's parameters, by name. None = calls are not parsed.
        tokens: the spellings of the format's markers that are control tokens; `Marks` represent them in the text.
        opening: the end of the prompt, which may open reasoning or a call.
        max_calls: further calls are dropped; None = no limit.
        custom: names of the custom tools, which take text; the others take a JSON object.
        is_continued: the prompt has a part of what `opening` opens, so leading white space of the answer is kept.
    """

    def __init__(
        self,
        chat_format: Format,
        tools: Mapping[str, Mapping[str, Json]] | None = None,
        *,
        tokens: Iterable[str] = (),
        opening: str = "",
        max_calls: int | None = None,
        custom: Collection[str] = (),
        is_continued: bool = False,
    ) -> None:
        self.marks = Marks(tokens)
        self.format_name = chat_format.name
        self.num_mistaken = 0
        """Number of texts that looked like a call but were none."""
        self._format = chat_format
        self._shape: AnyShape | None = None
        if chat_format.calls is not None and tools is not None:
            self._shape = with_marks(chat_format.calls, self.marks.encode)
        self._begin, self._end = (self.marks.encode(marker) for marker in chat_format.thinking)
        self._scanner = Scanner()
        self._events: list[Event] = []
        self._calls = Calls(self._events.append, tools, self._scanner.forget, max_calls, custom)
        self._held = ""
        """Trailing white space of the text so far. It is content only if more content follows."""
        self._strips = False
        """Leading white space of the following text is dropped."""
        self._has_calls = self._has_content = False
        self._running: Generator[None, None, None] | None = self._read()
        self._push(self._opened_by(opening))
        if is_continued:
            self._strips = False

    def push(self, text: str) -> list[Event]:
        """Takes the next piece of the answer; returns the events that it completes."""
        self._push(text)
        return self._taken()

    def flush(self) -> list[Event]:
        """Ends the answer; returns the remaining events."""
        self._scanner.end()
        self._push("")
        return self._taken()

    def _push(self, text: str) -> None:
        self._scanner.feed(text)
        if self._running is not None and next(self._running, self) is self:
            self._running = None

    def _taken(self) -> list[Event]:
        events = _joined(self._events)
        self._events.clear()
        return events

    def _opened_by(self, prompt: str) -> str:
        """The marker with which the prompt ends, if the answer continues its span; else empty."""
        tail = prompt.rstrip()
        starts = () if self._format.calls is None else self._format.calls.starts
        if self._shape is None:
            starts = [start for start in starts if any(each.startswith(start) for each in self._format.wrappers)]
        openings = [self._format.thinking[0], *starts]
        return next((self.marks.encode(marker) for marker in openings if marker and tail.endswith(marker.rstrip())), "")

    def _read(self) -> Generator[None, None, None]:
        section = self._section
        markers = Markers(
            [self._begin, self._end, *section, *self._starts, *map(self.marks.encode, self._format.wrappers)]
        )
        yield from self._bare_call()
        while (marker := (yield from self._scanner.until(markers, self._content))) is not None:
            if marker == self._begin:
                yield from self._reason()
            elif marker in self._starts or marker == section[0] != "":
                yield from self._call(marker)
            else:  # a marker around content, or an end without a beginning
                self._strips = not self._has_content
        if not self._has_calls and self._held:
            self._events.append(Content(self._held))

    @property
    def _starts(self) -> Sequence[str]:
        return () if self._shape is None else [start for start in self._shape.starts if start]

    @property
    def _section(self) -> tuple[str, str]:
        """The markers before and after all calls; empty = the format has none."""
        return getattr(self._shape, "section", ("", ""))

    def _content(self, text: str) -> None:
        self._has_content |= self._write(Content, text)

    def _reasoning(self, text: str) -> None:
        self._write(Reasoning, text)

    def _write(self, kind: type[Content | Reasoning], text: str) -> bool:
        """Emits text without trailing white space, which is held back; returns whether there was other text."""
        text = self.marks.dropped(text)
        text = self._held + (text.lstrip() if self._strips else text)
        body = text.rstrip()
        self._held = text[len(body) :]
        if body:
            self._strips = False
            self._events.append(kind(body))
        return bool(body)

    def _reason(self) -> Waits[None]:
        starts = [*self._starts, self._section[0]] if self._format.calls_end_thinking else []
        self._held, self._strips = "", True
        marker = yield from self._scanner.until(Markers([self._end, *starts]), self._reasoning)
        self._held, self._strips = "", True
        if marker in starts:
            assert marker is not None
            yield from self._call(marker)
        elif marker is not None:
            yield from self._bare_call()

    def _bare_call(self) -> Waits[None]:
        """Parses a call without a marker, in formats that have such calls: the answer begins with a bracket."""
        if self._shape is None or all(self._shape.starts):
            return
        yield from self._scanner.spaces()
        if (char := (yield from self._scanner.peek())) and char in "{[":
            yield from self._call("")

    def _call(self, marker: str) -> Waits[None]:
        assert self._shape is not None
        scanner = self._scanner
        held, self._held = self._held, ""
        scanner.record(marker)
        try:
            if marker and marker == self._section[0]:
                yield from scanner.spaces()
                marker = yield from self._start_after_section()
            yield from self._shape.read(scanner, self._calls, marker)
            self._has_calls = True
        except NotACall:
            text = self.marks.spelled(scanner.recorded())
            self._held = held
            if text:
                self.num_mistaken += 1
                self._content(text)
            else:
                self._has_calls = True
        scanner.forget()

    def _start_after_section(self) -> Waits[str]:
        for start in self._starts:
            if (yield from self._scanner.takes(start)):
                return start
        raise NotACall


def read_whole(
    text: str, chat_format: Format, tools: Mapping[str, Mapping[str, Json]] | None = None, opening: str = ""
) -> list[Event]:
    """The events of a complete answer whose markers are all plain text."""
    reader = Reader(chat_format, tools, opening=opening)
    return _joined([*reader.push(text), *reader.flush()])


def _joined(events: Iterable[Event]) -> list[Event]:
    """The events, with neighbors of the same text-carrying kind merged."""
    joined: list[Event] = []
    for kind, alike in groupby(events, type):
        if issubclass(kind, Reasoning | Content | CallArguments):
            joined.append(kind("".join(event.text for event in cast("Iterator[Content]", alike))))
        else:
            joined += alike
    return joined
