"""The parts of an answer, in the order in which the model writes them: reasoning, content and tool calls."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Reasoning(msgspec.Struct, frozen=True):
    """Some text of the model's reasoning."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """Some text of the answer."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A tool call begins: its name is complete, and is the name of a tool that was offered."""

    name: str
    is_custom: bool = False
    """The tool takes a text: what follows is no JSON."""


class CallArguments(msgspec.Struct, frozen=True):
    """Some text of the arguments of the call that has begun: a part of a JSON object, or of a custom tool's text."""

    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The call is complete. A call that the end of the answer cuts off has none."""


Event: TypeAlias = Reasoning | Content | CallBegin | CallArguments | CallEnd
