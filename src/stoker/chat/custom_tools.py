"""Custom tools: tools that take text instead of JSON. A regular expression or a Lark grammar may constrain the text.

The model, and the grammar of its calls, see a custom tool as a function with one argument, the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from stoker.errors import InvalidInput
from stoker.lazy import lazy_module
from stoker.text.chat_formats.custom import INPUT
from stoker.text.messages import Json

if TYPE_CHECKING:
    from stoker.grammars import lark, raw_text
else:
    lark = lazy_module("stoker.grammars.lark")  # needed only for custom tools with a grammar
    raw_text = lazy_module("stoker.grammars.raw_text")

_NOTATIONS = {"regex": "regular expression", "lark": "Lark grammar"}


def custom_function(raw: Mapping[str, Any], where: str) -> tuple[dict[str, Json], str | None]:
    """A custom tool as a function in OpenAI's format, and the pattern that its text must match; None = any text.

    Args:
        raw: the custom tool, with `name`, `description` and `format`.
        where: path of the tool in the request, for errors.

    Raises:
        InvalidInput: the format is malformed, or cannot be enforced.
    """
    description, pattern = _format(raw.get("format"), f"{where}.format")
    text: dict[str, Json] = {"type": "string", "description": description}
    parameters: dict[str, Json] = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    about = {name: raw[name] for name in ("name", "description") if raw.get(name) is not None}
    return {"type": "function", "function": {**about, "parameters": parameters}}, pattern


def constrained_input(pattern: str) -> dict[str, Json]:
    """The schema of the arguments of a custom tool whose text must match a pattern."""
    text: dict[str, Json] = {"type": "string", "pattern": pattern}
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _format(raw: object, where: str) -> tuple[str, str | None]:
    """The description of the text for the model, and the pattern that the text must match."""
    if raw is None:
        return "Any text.", None
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"`{where}` must be an object", parameter=where)
    given = cast("Mapping[str, Any]", raw)
    match given.get("type"):
        case "text":
            return "Any text.", None
        case "grammar":
            nested = given.get("grammar", given)
            if isinstance(nested, Mapping):
                return _grammar(cast("Mapping[str, Any]", nested), where)
            raise InvalidInput(f"`{where}.grammar` must be an object", parameter=f"{where}.grammar")
        case _:
            raise InvalidInput(f"`{where}.type` must be text or grammar", parameter=f"{where}.type")


def _grammar(raw: Mapping[str, Any], where: str) -> tuple[str, str]:
    syntax, definition = raw.get("syntax"), raw.get("definition")
    if not isinstance(syntax, str) or syntax not in _NOTATIONS:
        raise InvalidInput(f"`{where}`: `syntax` must be regex or lark", parameter=f"{where}.syntax")
    if not isinstance(definition, str) or not definition:
        raise InvalidInput(f"`{where}`: `definition` is missing", parameter=f"{where}.definition")
    try:
        pattern = raw_text.whole_pattern(lark.regex_of_lark(definition) if syntax == "lark" else definition)
    except InvalidInput as error:
        raise type(error)(f"`{where}`: {error}", parameter=f"{where}.definition") from None
    return f"Text that matches this {_NOTATIONS[syntax]}:\n{definition}", pattern
