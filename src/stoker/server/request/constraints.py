"""Converts the fields that constrain the text of an answer (JSON schema, regex, grammar, …) to one `GrammarText`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from stoker.chat.constraints import (
    choice_grammar,
    response_grammar,
    schema_grammar,
    structured_grammar,
    written_grammar,
)
from stoker.chat.planning import Plan
from stoker.core.outline import GrammarText, Outline
from stoker.errors import InvalidInput
from stoker.server.request.fields import ConstrainedFields

_OBJECT = {"type": "object"}


def grammar_of(fields: ConstrainedFields) -> GrammarText | None:
    """The constraint of a request; None if it has none.

    Raises:
        InvalidInput: the request has constraints that differ, or a malformed one. Several fields may have the same one,
            as some clients write it for older and newer servers at once.
        UnsupportedParameter: a kind of constraint is not supported.
    """
    found = dict(_constraints(fields))
    if len(set(found.values())) > 1:
        names = " and ".join(f"`{name}`" for name in found)
        raise InvalidInput(f"{names} cannot be combined: an answer follows one constraint", parameter=list(found)[1])
    return next(iter(found.values()), None)


def text_plan(fields: ConstrainedFields, prompt: str = "") -> Plan:
    """The plan of a request that continues a text instead of a conversation.

    Raises:
        InvalidInput: see `grammar_of`.
    """
    grammar = grammar_of(fields)
    return Plan(prompt=prompt, outline=None if grammar is None else Outline(grammar=grammar))


def _constraints(fields: ConstrainedFields) -> Iterator[tuple[str, GrammarText]]:
    if fields.response_format and (grammar := response_grammar(fields.response_format)):
        yield "response_format", grammar
    for name in ("json_schema", "guided_json"):
        schema: dict[str, Any] | str | bool | None = getattr(fields, name)
        if schema is not None:
            yield name, schema_grammar(schema or _OBJECT, name)
    for name in ("grammar", "guided_grammar", "ebnf"):
        if text := cast("str | None", getattr(fields, name)):
            yield name, written_grammar(text)
    for name in ("regex", "guided_regex"):
        if (text := cast("str | None", getattr(fields, name))) is not None:
            yield name, GrammarText(kind="regex", text=text)
    if fields.guided_choice is not None:
        yield "guided_choice", choice_grammar(fields.guided_choice, "guided_choice")
    if fields.structured_outputs:
        yield "structured_outputs", structured_grammar(fields.structured_outputs)
