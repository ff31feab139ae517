"""Translates the text of a constraint to the source that the grammar engine compiles. Needs only names of some tokens.

A hostile text can cause much work here, all of it in Python. So this may run in a separate process: see `lowering`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, GrammarTooComplex
from stoker.grammars.calls import alone, call_source
from stoker.grammars.closing import closed
from stoker.grammars.gbnf import lark_of_gbnf
from stoker.grammars.notations import ESCAPES, WHITESPACE
from stoker.grammars.patterns import literal
from stoker.grammars.raw_text import regex
from stoker.grammars.references import Json, is_list, is_object
from stoker.grammars.schemas import lower_schema, parse_json

MAX_REGEX: Final = 64 << 10
"""Maximum length of a regular expression, in characters."""
MAX_GRAMMAR: Final = 1 << 20
"""Maximum length of any other grammar, in characters."""
MAX_CALLS: Final = 5 << 20
"""Maximum length of the plan of an answer that may call tools, including the schemas of all tools, in characters."""
MAX_CHOICES: Final = 50_000


class Names(Protocol):
    """The facts about a model's tokens that grammars need."""

    def one_token(self, text: str) -> int | None:
        """The id of the token that is exactly this text; None if the text is several tokens, or none."""
        ...

    def pieces(self, marker: str) -> list[str | int]:
        """The special tokens in a marker and the text between them, without end-of-generation tokens."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """A constraint to translate."""

    grammar: GrammarText
    alone: int | None = None
    """Index of a tool, for a grammar of calls: translate only the call of this tool. None = everything."""
    relaxed: Mapping[int, str] = field(default_factory=dict[int, str])
    """Indices of tools whose arguments may be any object, for a grammar of calls, with the reason in words."""


@dataclass(frozen=True, slots=True)
class Source:
    """The input of the grammar engine for one constraint."""

    text: str
    dropped: tuple[str, ...] = ()
    """The parts of a schema that are not enforced, in words."""
    doubtful: tuple[str, ...] = ()
    """See `CallSource.doubtful`."""
    tools: tuple[tuple[str, bool], ...] = ()
    """For a grammar of calls: the names of the tools, and whether their arguments must be enforced."""
    is_json: bool = False
    """Backslashes occur only in JSON strings, or where any text is allowed."""


def source_of(order: Order, names: Names) -> Source:
    """Translates a constraint to the input of the grammar engine.

    Raises:
        GrammarInvalid: the grammar is malformed.
        GrammarTooComplex: the grammar exceeds a limit.
        UnsupportedSchema: a part of a JSON schema cannot be enforced.
    """
    grammar = order.grammar
    limit = {"regex": MAX_REGEX, "calls": MAX_CALLS}.get(grammar.kind, MAX_GRAMMAR)
    if len(grammar.text) > limit:
        raise GrammarTooComplex(f"the grammar has over {limit} characters")
    match grammar.kind:
        case "json_schema":
            return _of_schema(grammar, grammar.text)
        case "json_object":
            return _of_schema(grammar, '{"type": "object"}')
        case "regex":
            return Source(of_lark(f"start: {regex(grammar.text)}"))
        case "choice":
            return Source(of_lark(_choices(grammar.text)))
        case "gbnf":
            return Source(of_lark(lark_of_gbnf(grammar.text, names.one_token)))
        case "lark":
            return Source(of_lark(grammar.text))
        case "calls":
            return _of_calls(order, names)


def of_lark(text: str) -> str:
    """A Lark grammar as JSON input of the engine."""
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _of_calls(order: Order, names: Names) -> Source:
    plan: Json = json.loads(order.grammar.text)
    tools = tuple((str(tool["name"]), bool(tool["is_strict"])) for tool in plan["tools"])
    if order.alone is not None:
        plan = alone(plan, order.alone)
    source = call_source(plan, names.pieces, order.relaxed)
    grammars: list[Json] = [{"lark_grammar": source.lark}]
    dropped = (*source.dropped, *order.relaxed.values())
    is_json = source.is_json
    if is_object(plan["content"]):
        content = source_of(Order(GrammarText(**plan["content"])), names)
        grammars.append({"name": "content", **json.loads(content.text)["grammars"][0]})
        dropped = (*content.dropped, *dropped)
        is_json &= content.is_json
    return Source(json.dumps({"grammars": grammars}), dropped, source.doubtful, tools, is_json)


def _of_schema(grammar: GrammarText, text: str) -> Source:
    schema = parse_json(text)
    lowered = lower_schema(closed(schema) if grammar.closes else schema, is_strict=grammar.is_strict)
    whitespace = WHITESPACE if grammar.whitespace is None else grammar.whitespace
    options = {"whitespace_pattern": whitespace, "json_allowed_escapes": ESCAPES}
    text = json.dumps({"grammars": [{"json_schema": {**lowered.schema, "x-guidance": options}}]})
    return Source(text, lowered.dropped, is_json=True)


def _choices(text: str) -> str:
    try:
        choices = json.loads(text)
    except ValueError as error:
        raise GrammarInvalid(f"the choices are not valid JSON: {error}") from None
    if not is_list(choices) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarInvalid("the choices are not a list of at least one string")
    if len(choices) > MAX_CHOICES:
        raise GrammarTooComplex(f"there are over {MAX_CHOICES} choices")
    return "start: CHOICE\nCHOICE: " + " | ".join(f"/{literal(choice)}/" if choice else '""' for choice in choices)
