"""Translates a request's constraints (its outline) to the fields by which llama-server constrains an answer."""

from __future__ import annotations

import json

from stoker.core.outline import Outline
from stoker.errors import InvalidInput, UnsupportedParameter

_KINDS = {"regex": "regex", "choice": "structured_outputs", "lark": "grammar"}
"""Kinds of constraints that llama-server does not support, with the client's request field, for the error."""


def constraint_fields(outline: Outline | None) -> dict[str, object]:
    """The fields of the request to llama-server; empty if the answer is not constrained.

    Raises:
        UnsupportedParameter: llama-server does not support this kind of constraint, a constraint in a continued answer,
            a reasoning budget, or ending reasoning during the stream.
        InvalidInput: the JSON schema is not valid JSON.
    """
    if outline is None:
        return {}
    if outline.reasoning is not None and outline.reasoning.budget is not None:
        message = "a budget of reasoning tokens is not available: llama-server has no budget per request"
        raise UnsupportedParameter(message, parameter="reasoning_budget_tokens")
    if outline.reasoning is not None and outline.reasoning.can_be_ended:
        message = "reasoning cannot be ended during the stream with --runtime llama-server"
        raise UnsupportedParameter(message, parameter="reasoning_control")
    grammar = outline.grammar
    if grammar is None:
        return {}
    if outline.begun:
        message = "a constrained answer cannot be continued: llama-server applies a constraint to new text only"
        raise UnsupportedParameter(message, parameter="messages")
    match grammar.kind:
        case "json_schema":
            return {"json_schema": _schema(grammar.text)}
        case "json_object":
            return {"json_schema": {"type": "object"}}
        case "gbnf":
            return {"grammar": grammar.text}
        case kind:
            message = f"constraints of the kind `{kind}` are not available: llama-server does not support them"
            raise UnsupportedParameter(message, parameter=_KINDS.get(kind, "response_format"))


def _schema(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the JSON schema is not valid JSON: {error}", parameter="response_format") from None
