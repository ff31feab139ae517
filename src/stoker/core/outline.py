"""Constraints on the text of an answer (structured output), as plain values that can be sent. It checks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

GrammarKind: TypeAlias = Literal["json_schema", "json_object", "regex", "choice", "gbnf", "lark", "calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarText:
    """A constraint (grammar) as the client wrote it."""

    kind: GrammarKind
    text: str = ""
    """A JSON schema; a regular expression in Rust's syntax, which the whole text must match; a JSON array of the texts
    to choose from; or a grammar. Empty for `json_object`. For `calls`, the plan of an answer that may call tools, as
    `stoker.text.chat_formats.grammar` makes it."""
    whitespace: str | None = None
    """A regular expression for the whitespace between JSON tokens; None = one space, or a line break and the
    indentation of the next line."""
    is_strict: bool = True
    """Schemas with a keyword that cannot be enforced are refused. False: the keyword is dropped and listed."""
    closes: bool = False
    """Objects of a schema allow only the properties that it names, unless the schema describes additional ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSpan:
    """The reasoning (thinking) of an answer, before the text that the client asked for, and how to recognize it."""

    starts_open: bool = False
    """The prompt ends within the reasoning, after the start marker."""
    start_text: str = ""
    end_text: str = ""
    implicit_ends: tuple[str, ...] = ()
    """Markers that also end the reasoning, but belong to the following text, such as the marker of a tool call."""
    budget: int | None = None
    """Maximum number of tokens in the reasoning; None = no limit."""
    closing_text: str = ""
    """Text to insert before `end_text` if the budget or the client ends the reasoning."""
    can_be_ended: bool = False
    """The client may end the reasoning while it is generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The parts of one answer and their constraints, as a request carries them to the engine."""

    grammar: GrammarText | None = None
    """The constraint on the text after the reasoning; None = any text."""
    begun: str = ""
    """The beginning of the constrained text that is part of the prompt; the answer continues it."""
    reasoning: ReasoningSpan | None = None
    markers: tuple[str, ...] = ()
    """Texts of control tokens whose positions in the answer are reported."""
    hides_stops: bool = False
    """Stop strings apply only to the text after the reasoning."""
    ends: tuple[str, ...] = ()
    """Texts that end the answer like an end-of-generation token of the model."""
