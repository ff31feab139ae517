"""Terminals of the grammar engine for raw text that satisfies a lowered schema, without the quotes of a notation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stoker.grammars.patterns import PatternError, literal
from stoker.grammars.references import Json, is_object
from stoker.grammars.schemas import PREFIX

_LOOSE: Final = r"[^\s\"'(\[\{0-9+\-.~](?s:.*)"
"""Matches text that is neither JSON nor a Python literal, unless it is one of `_WORDS`."""
_WORDS: Final = r"(?:true|false|null|True|False|None|NaN|Infinity)(?:[\r\n<](?s:.*))?"
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST: Final = r"[a-z0-9](?:[a-z0-9]{0,30}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9]{0,30}[a-z0-9])?){0,4}"
_FORMATS: Final = {
    "email": rf"[A-Za-z0-9_+\-]{{1,40}}(?:\.[A-Za-z0-9_+\-]{{1,20}})?@{_HOST}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "uri": rf"[a-z][a-z0-9+.\-]{{0,20}}:\/\/{_HOST}(?:\/[A-Za-z0-9._~!$&'()*+,;=:@\-]*)*(?:\?[A-Za-z0-9._~&=+\-]*)?",
}
"""Expressions for the formats that remain in lowered schemas. They are stricter than the formats."""
_NUMERIC: Final = (
    r"\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""Matches a numeric escape of a JSON string, as a surrogate pair if necessary."""
ANY_TEXT: Final = "/(?s:.*)/"


def text_terminal(schema: Json, definitions: dict[str, Json]) -> str | None:
    """The body of a terminal for raw text that satisfies a schema of strings; None = any text.

    Raises:
        PatternError: a pattern has `^` or `$` in the middle.
    """
    if not is_object(schema):
        return None
    if "$ref" in schema:
        return text_terminal(definitions[schema["$ref"].removeprefix(PREFIX)], definitions)
    if "anyOf" in schema:
        options = [text_terminal(option, definitions) for option in schema["anyOf"]]
        return None if None in options else " | ".join(f"({option})" for option in options)
    if "enum" in schema or "const" in schema:
        return " | ".join(exact(value) for value in schema.get("enum", [schema.get("const")]))
    demands = [regex(whole(schema["pattern"]))] if "pattern" in schema else []
    demands += [regex(_FORMATS[schema["format"]])] if schema.get("format") in _FORMATS else []
    demands += [f"({found})" for part in schema.get("allOf", ()) if (found := text_terminal(part, definitions))]
    if "minLength" in schema or "maxLength" in schema:
        demands.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
    return " & ".join(demands) or None


def loose_terminal(wanted: str | None) -> str:
    """The body of a terminal for texts that cannot be mistaken for JSON or a Python literal."""
    return f"({wanted or ANY_TEXT}) & {regex(_LOOSE)} & ~/{_WORDS}/ & ~/(?s:.*)\\n/"


def quoted_terminal(wanted: str | None) -> str:
    """The body of a terminal for a JSON string with quotes. With a constraint `wanted`, escapes are not allowed."""
    plain = r'/[^"\\<\x00-\x1f]*/'
    return rf'/"/ (({wanted}) & {plain}) /"/' if wanted else rf'/"(?:[^"\\<\x00-\x1f]|\\[nrtbf\\"\x2f]|{_NUMERIC})*"/'


def strings(schema: Json, definitions: dict[str, Json]) -> Json:
    """The part of a lowered schema for strings."""
    if not is_object(schema):
        return {}
    if "$ref" in schema:
        return strings(definitions[schema["$ref"].removeprefix(PREFIX)], definitions)
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if set(kinds(option, definitions)) & {"string", "any"}]
        return {"anyOf": [strings(option, definitions) for option in options]}
    if "enum" in schema:
        return {"enum": [value for value in schema["enum"] if isinstance(value, str)]}
    return schema


def without_strings(schema: Json, definitions: dict[str, Json]) -> Json:
    """The part of a lowered schema for values that are not strings."""
    if not is_object(schema) or not schema:
        return {"type": ["null", "boolean", "number", "array", "object"]}
    found = set(kinds(schema, definitions))
    if not found & {"string", "any"}:
        return schema
    if "$ref" in schema:
        return without_strings(definitions[schema["$ref"].removeprefix(PREFIX)], definitions)
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if set(kinds(option, definitions)) != {"string"}]
        return {"anyOf": [without_strings(option, definitions) for option in options]}
    return {"enum": [value for value in schema.get("enum", ()) if not isinstance(value, str)]}


def kinds(schema: Json, definitions: dict[str, Json]) -> Iterable[str]:
    """The names of the types of values that satisfy a lowered schema; `any` = all types, `other` = not a string."""
    if not is_object(schema):
        return ["any"]
    if "$ref" in schema:
        return kinds(definitions[schema["$ref"].removeprefix(PREFIX)], definitions)
    if "anyOf" in schema:
        return [kind for option in schema["anyOf"] for kind in kinds(option, definitions)]
    if "enum" in schema:
        return ["string" if isinstance(value, str) else "other" for value in schema["enum"]]
    return [schema.get("type", "any")]


def whole(pattern: str) -> str:
    """Converts an expression that is searched in texts to one that matches whole texts.

    Raises:
        PatternError: the expression has `^` or `$` in the middle.
    """
    return "|".join(_whole_option(*each) for each in _anchored(pattern))


def whole_pattern(pattern: str) -> str:
    """An expression in the syntax of JSON schemas for texts that `pattern` matches as a whole."""
    return f"^(?:{'|'.join(option[starts : len(option) - ends] for option, starts, ends in _anchored(pattern))})$"


def _anchored(pattern: str) -> list[tuple[str, bool, bool]]:
    """The alternatives outside of groups, and whether each is anchored at the beginning and at the end."""
    return [
        (option, option.startswith("^"), option.endswith("$") and not re.search(r"(?<!\\)(?:\\\\)*\\\$$", option))
        for option in _options(pattern)
    ]


def _whole_option(option: str, starts: bool, ends: bool) -> str:
    body = option[starts : len(option) - ends]
    if re.search(r"(?<!\\)(?:\\\\)*[\^$]", re.sub(r"\[\^?(?:\\.|[^\]\\])*\]", "", body)):
        raise PatternError("`^` and `$` are supported at its ends only")
    return f"{'' if starts else '(?s:.*)'}(?:{body}){'' if ends else '(?s:.*)'}"


def _options(pattern: str) -> list[str]:
    """The alternatives outside of groups."""
    found, depth = [""], 0
    for part in re.findall(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            found.append("")
        else:
            found[-1] += part
    return found


def regex(expression: str) -> str:
    """The expression between slashes, as a Lark terminal; slashes and line breaks inside are escaped."""
    inside = {"/": r"\x2f", "\\/": r"\x2f", "\n": r"\n"}
    return "/" + re.sub(r"\\.|/|\n", lambda found: inside.get(found[0], found[0]), expression) + "/"


def exact(value: str) -> str:
    """The body of a terminal that matches exactly one text."""
    return f"/{literal(value)}/" if value else '""'
