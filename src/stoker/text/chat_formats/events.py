"""The parts of a streamed answer: reasoning, content and tool calls."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """The beginning of a tool call, with the name of an offered tool."""

    name: str
    is_custom: bool = False
    """The tool is a custom tool: the arguments are text, not JSON."""


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of the arguments of the current call: a part of a JSON object, or of the text for a custom tool."""

    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The end of a complete call. A call that is cut off at the end of the answer has no `CallEnd`."""


Event: TypeAlias = Reasoning | Content | CallBegin | CallArguments | CallEnd
