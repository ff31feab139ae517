"""Converts constraints on the text of an answer, in the forms that clients write, to one `GrammarText`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from stoker.core.outline import GrammarText
from stoker.errors import InvalidInput, UnsupportedParameter

_LARK = "%llguidance"
_LARK_START = re.compile(r"^[ \t]*[?!]?start\s*:", re.MULTILINE)


def response_grammar(raw: Mapping[str, Any], where: str = "response_format") -> GrammarText | None:
    """The grammar of OpenAI's `response_format`; None = plain text.

    This also reads `text.format` of the responses API, which has the members of `json_schema` one level higher.

    Raises:
        InvalidInput: the format is malformed.
        UnsupportedParameter: the format's `type` is not supported.
    """
    match raw.get("type"):
        case "text" | None:
            return None
        case "json_object" if not raw.get("schema"):
            return _any_object()
        case "json_object" | "json_schema":
            return _json_schema(raw, where)
        case kind:
            message = f"`{where}.type` must be text, json_object or json_schema, not {kind!r}"
            raise UnsupportedParameter(message, parameter=f"{where}.type")


def schema_grammar(schema: object, where: str, *, is_strict: bool = True) -> GrammarText:
    """The grammar of a JSON schema, given as an object or as JSON text.

    Objects allow only the properties that the schema declares, because models tend to invent others.

    Raises:
        InvalidInput: `schema` is neither an object nor a boolean, nor the JSON text of one.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"`{where}` is not valid JSON: {error}", parameter=where) from None
    if not isinstance(schema, dict | bool):
        raise InvalidInput(f"`{where}` must be a JSON schema: an object", parameter=where)
    return GrammarText(
        kind="json_schema", text=json.dumps(schema, ensure_ascii=False), is_strict=is_strict, closes=True
    )


def _json_schema(raw: Mapping[str, Any], where: str) -> GrammarText:
    inner = raw.get("json_schema", raw if "schema" in raw else None)
    inner_where = f"{where}.json_schema" if inner is not raw else where
    if not isinstance(inner, dict) or "schema" not in inner:
        raise InvalidInput(f"`{inner_where}.schema` is missing", parameter=f"{inner_where}.schema")
    values = cast("dict[str, Any]", inner)
    return schema_grammar(values["schema"], f"{inner_where}.schema", is_strict=values.get("strict") is not False)


def structured_grammar(raw: Mapping[str, Any], where: str = "structured_outputs") -> GrammarText:
    """The grammar of vLLM's `structured_outputs`, which must have exactly one constraint.

    Raises:
        InvalidInput: the object is malformed, or has no constraint or several.
        UnsupportedParameter: the object has a `structural_tag`.
    """
    makers: dict[str, Callable[[Any], GrammarText]] = {
        "json": lambda value: schema_grammar(value, f"{where}.json"),
        "regex": lambda value: GrammarText(kind="regex", text=_text(value, f"{where}.regex")),
        "choice": lambda value: choice_grammar(value, f"{where}.choice"),
        "grammar": lambda value: written_grammar(_text(value, f"{where}.grammar")),
        "json_object": lambda value: _any_object(),
    }
    given = [name for name, value in raw.items() if name in makers and value not in (None, False)]
    if "structural_tag" in raw and raw["structural_tag"] is not None:
        message = f"`{where}.structural_tag` is not supported here: offer `tools` instead"
        raise UnsupportedParameter(message, parameter=f"{where}.structural_tag")
    if len(given) != 1:
        raise InvalidInput(f"`{where}` must have exactly one of {', '.join(makers)}", parameter=where)
    grammar = makers[given[0]](raw[given[0]])
    pattern = raw.get("whitespace_pattern")
    if raw.get("disable_any_whitespace"):
        pattern = ""
    if pattern is None:
        return grammar
    return replace(grammar, whitespace=_text(pattern, f"{where}.whitespace_pattern"))


def written_grammar(text: str) -> GrammarText:
    """A grammar from its source: GBNF, or Lark if it begins with `%llguidance` or has a `start:` rule but no `::=`."""
    is_lark = text.lstrip().startswith(_LARK) or ("::=" not in text and _LARK_START.search(text) is not None)
    return GrammarText(kind="lark" if is_lark else "gbnf", text=text)


def choice_grammar(raw: object, where: str) -> GrammarText:
    """The grammar of an answer that is exactly one of the given texts.

    Raises:
        InvalidInput: `raw` is not a list of texts, or is empty.
    """
    texts = cast("list[object]", raw) if isinstance(raw, list) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"`{where}` must be a list with at least one text", parameter=where)
    return GrammarText(kind="choice", text=json.dumps(texts, ensure_ascii=False))


def _any_object() -> GrammarText:
    return GrammarText(kind="json_object")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"`{where}` must be a string", parameter=where)
    return value
