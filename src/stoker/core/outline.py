"""What the text of an answer must look like, as plain values that can be sent. Nothing is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

GrammarKind: TypeAlias = Literal["json_schema", "json_object", "regex", "choice", "gbnf", "lark", "calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarText:
    """A constraint as the client wrote it."""

    kind: GrammarKind
    text: str = ""
    """A JSON schema; a regular expression in Rust's syntax, which the whole text must match; a JSON array of strings of
    which the text must be one; or a grammar. Nothing for `json_object`. For `calls`, the plan of an answer that may
    call tools, as `stoker.text.chat_formats.grammar` makes it."""
    whitespace: str | None = None
    """A regular expression for the space between two tokens of JSON; not given: one space, or a line break and what
    indents the next line."""
    is_strict: bool = True
    """Refuse a keyword of a schema that cannot be enforced; otherwise it is dropped and listed."""
    closes: bool = False
    """Objects of a schema have no members but those that they name, unless they say what others may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSpan:
    """The part of an answer in which the model thinks, before the text that the client asked for."""

    starts_open: bool = False
    """The prompt ends inside of it."""
    start_text: str = ""
    end_text: str = ""
    implicit_ends: tuple[str, ...] = ()
    """Markers that end it too and belong to what follows, as the marker of a tool call does."""
    budget: int | None = None
    """How many tokens it may have at most; not given: no limit."""
    closing_text: str = ""
    """What is written before `end_text` where the budget or the client ends it."""
    can_be_ended: bool = False
    """The client may end it while it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The parts of an answer and what constrains them."""

    grammar: GrammarText | None = None
    """What the text after the reasoning must match."""
    begun: str = ""
    """The part of that text that the prompt ends with; the answer continues it."""
    reasoning: ReasoningSpan | None = None
    markers: tuple[str, ...] = ()
    """Spellings of control tokens whose places in the answer are reported."""
    hides_stops: bool = False
    """Stop strings count only in the text after the reasoning."""
    ends: tuple[str, ...] = ()
    """Texts that end the answer as the model's own end does."""
