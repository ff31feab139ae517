"""Outputs of an engine, read as reasoning, content and tool calls; it knows no wire format.

Output --OutputReader.parts--> Content, Reasoning, CallBegin, … --ToolCalls.push--> ToolCall
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from stoker.engine.protocol import Output
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from stoker.text.chat_formats.reader import Reader

Part: TypeAlias = Event
"""Content, reasoning, or a piece of a tool call."""


class OutputReader:
    """Reads the outputs of one answer.

    Args:
        make_reader: makes the reader of the answer's text; None = the answer is content as it is written.
    """

    def __init__(self, make_reader: Callable[[], Reader] | None) -> None:
        self._reader = None if make_reader is None else make_reader()

    def parts(self, output: Output) -> Sequence[Part]:
        """What the next output adds to the answer."""
        if self._reader is None:
            return (Content(output.text),) if output.text else ()
        parts = self._reader.push(self._reader.marks.joined(output.text, output.marks))
        if output.finish_reason is not None:
            parts += self.flush()
        return parts

    def flush(self) -> Sequence[Part]:
        """What is left at the end of an answer, also of one that has no last output. Calling it twice is allowed."""
        reader, self._reader = self._reader, None
        return () if reader is None else reader.flush()


def text_of(parts: Iterable[Part]) -> str:
    """The content among the parts of an answer."""
    return "".join([part.text for part in parts if isinstance(part, Content)])


def reasoning_of(parts: Iterable[Part]) -> str:
    """The reasoning among the parts of an answer."""
    return "".join([part.text for part in parts if isinstance(part, Reasoning)])


@dataclass(slots=True)
class ToolCall:
    """A tool call of an answer."""

    call_id: str
    index: int
    """Its place among the calls of the answer."""
    name: str
    is_complete: bool = False
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> str:
        """JSON, as the model wrote it; a part of it if the answer was cut off."""
        return "".join(self._pieces)

    def push(self, text: str) -> None:
        """Adds text to the arguments."""
        self._pieces.append(text)


@dataclass(slots=True)
class ToolCalls:
    """The tool calls of one choice, or those so far. Text is not kept: a stream may be long.

    Args:
        id_prefix: begins the ids of calls.
        seed: makes the ids differ from those of other answers.
    """

    id_prefix: str
    seed: str
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def push(self, part: Part) -> None:
        """Notes a part of the answer."""
        match part:
            case Content() | Reasoning():
                pass
            case CallBegin():
                self.calls.append(ToolCall(self._call_id(), len(self.calls), part.name))
            case CallArguments():
                self.calls[-1].push(part.text)
            case CallEnd():
                self.calls[-1].is_complete = True

    def push_all(self, parts: Iterable[Part]) -> ToolCalls:
        """Notes all of these parts."""
        for part in parts:
            self.push(part)
        return self

    @property
    def has_complete(self) -> bool:
        """There is a complete tool call."""
        return any(call.is_complete for call in self.calls)

    def _call_id(self) -> str:
        digest = hashlib.blake2s(f"{self.seed}/{len(self.calls)}".encode()).hexdigest()
        return f"{self.id_prefix}{digest[:24]}"
