"""Parses outputs of an engine into reasoning, content and tool calls. Independent of wire formats.

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
    """Parses the outputs of one answer, in order.

    Args:
        make_reader: makes the parser of the answer's text; None = the whole text is content.
    """

    def __init__(self, make_reader: Callable[[], Reader] | None) -> None:
        self._reader = None if make_reader is None else make_reader()
        self.format_name = "" if self._reader is None else self._reader.format_name
        """Name of the tool-call format that the parser looks for; empty = there is no parser."""
        self.num_mistaken = 0
        """Number of texts that looked like a tool call but were none; set when the answer has ended."""

    def parts(self, output: Output) -> Sequence[Part]:
        """The parts that the next output adds to the answer."""
        if self._reader is None:
            return (Content(output.text),) if output.text else ()
        parts = self._reader.push(self._reader.marks.joined(output.text, output.marks))
        if output.finish_reason is not None:
            parts += self.flush()
        return parts

    def flush(self) -> Sequence[Part]:
        """The remaining parts at the end of an answer, even without a last output. Calling it twice is allowed."""
        reader, self._reader = self._reader, None
        if reader is None:
            return ()
        parts = reader.flush()
        self.num_mistaken = reader.num_mistaken
        return parts


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
    """Position among the calls of the answer, from 0."""
    name: str
    is_custom: bool = False
    """The tool is a custom tool, which takes text instead of JSON."""
    is_complete: bool = False
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> str:
        """JSON, as the model wrote it, or a custom tool's text; a part of it if the answer was cut off."""
        return "".join(self._pieces)

    def push(self, text: str) -> None:
        """Adds text to the arguments."""
        self._pieces.append(text)


@dataclass(slots=True)
class ToolCalls:
    """Collects the tool calls of one choice while its answer is parsed.

    Args:
        id_prefix: prefix of the ids of calls.
        seed: makes the ids differ from those of other answers.
        keep: called with the id of the first call after some reasoning, and with that reasoning.
    """

    id_prefix: str
    seed: str
    keep: Callable[[str, str], None] | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    _thoughts: list[str] = field(default_factory=list[str])

    def push(self, part: Part) -> None:
        """Processes the next part of the answer."""
        match part:
            case Content():
                pass
            case Reasoning():
                if self.keep is not None:
                    self._thoughts.append(part.text)
            case CallBegin():
                if self.keep is not None and self._thoughts:
                    self.keep(self._call_id(), "".join(self._thoughts))
                    self._thoughts.clear()
                self.calls.append(ToolCall(self._call_id(), len(self.calls), part.name, part.is_custom))
            case CallArguments():
                self.calls[-1].push(part.text)
            case CallEnd():
                self.calls[-1].is_complete = True

    def push_all(self, parts: Iterable[Part]) -> ToolCalls:
        """Processes several parts, in order; returns this object."""
        for part in parts:
            self.push(part)
        return self

    @property
    def has_complete(self) -> bool:
        """Whether there is a complete tool call."""
        return any(call.is_complete for call in self.calls)

    def _call_id(self) -> str:
        digest = hashlib.blake2s(f"{self.seed}/{len(self.calls)}".encode()).hexdigest()
        return f"{self.id_prefix}{digest[:24]}"
