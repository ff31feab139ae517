"""The parts of an answer, in the order in which the model writes them: reasoning, content and tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Some text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Some text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins: its name is complete, and is the name of a tool that was offered."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Some text of the arguments of the call that has begun: a part of a JSON object."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete. A call that the end of the answer cuts off has none."""


Event: TypeAlias = Reasoning | Content | CallBegin | CallArguments | CallEnd
