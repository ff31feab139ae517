"""Translates the plan of an answer that may call tools to a grammar for the engine. Compiles nothing.

The format of a plan is described in `stoker.text.chat_formats.grammar`. Formats of single models are unknown here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stoker.errors import GrammarTooComplex, InvalidInput, UnsupportedSchema
from stoker.grammars.closing import closed
from stoker.grammars.notations import (
    EMPTY,
    KEY,
    MAX_FREE,
    WHITESPACE,
    Bare,
    Pieces,
    Python,
    Rules,
    Values,
    demand_named,
    json_rule,
)
from stoker.grammars.patterns import PatternError, literal
from stoker.grammars.raw_text import (
    kinds,
    loose_terminal,
    quoted_terminal,
    regex,
    strings,
    text_terminal,
    without_strings,
)
from stoker.grammars.references import Json, is_list, is_object
from stoker.grammars.schemas import PREFIX, Lowered, lower_schema, parse_json

MAX_TOOLS = 1_024
_OPEN: Json = {"type": "object"}
_GAP = f"(/{WHITESPACE}/)?"
_WORDS = {"boolean": "True|False", "null": "None"}
"""Words by type that some models write as in Python."""


@dataclass(frozen=True, slots=True)
class CallSource:
    """A grammar of tool calls in the engine's dialect of Lark."""

    lark: str
    dropped: tuple[str, ...]
    """The parts of the tools' schemas that are not enforced, in words."""
    doubtful: tuple[str, ...]
    """Bodies of terminals that possibly match no text. The engine would detect this only in the middle of an answer."""
    is_json: bool
    """See `Source.is_json`."""


def call_source(plan: Json, pieces: Pieces, relaxed: Collection[int] = ()) -> CallSource:
    """The grammar of a plan.

    Args:
        plan: the plan, see `stoker.text.chat_formats.grammar`.
        pieces: splits markers into tokens and text.
        relaxed: indices of the tools whose arguments may be any object.

    Raises:
        GrammarTooComplex: there are too many tools.
        InvalidInput: the schema of a strict tool cannot be enforced.
    """
    if len(plan["tools"]) > MAX_TOOLS:
        raise GrammarTooComplex(f"there are over {MAX_TOOLS} tools")
    return _Plan(plan, pieces, relaxed).source()


def tool_schema(tool: Json) -> Lowered:
    """The lowered schema of a tool's arguments.

    Raises:
        InvalidInput: the schema cannot be enforced, and the tool is strict.
    """
    try:
        return _lowered(tool["schema"], bool(tool["is_strict"]))
    except InvalidInput as error:
        if tool["is_strict"]:
            raise type(error)(f"the tool `{tool['name']}`: {error}", **error.fields) from None
        return Lowered(_OPEN, (f"the parameters of the tool `{tool['name']}`: {error}",))


def alone(plan: Json, index: int) -> Json:
    """The plan reduced to the call of one tool, without content."""
    rest = plan["options"][index]
    call = {"trigger": "", "head": "", "follows_content": False, "rest": rest}
    return {**plan, "content": None, "calls": [call], "opened": ""}


@lru_cache(maxsize=1024)
def _lowered(text: str, is_strict: bool) -> Lowered:
    schema: Json = parse_json(text)
    schema = {} if schema is None or schema is True else schema
    types = schema.get("type", "object") if is_object(schema) else "object"
    if types != "object" and "object" not in types:
        raise UnsupportedSchema(
            "they are not an object", pointer="/type", keyword="type", reason="arguments are an object"
        )
    schema = closed(schema)
    return lower_schema({**schema, "type": "object"} if is_object(schema) else schema, is_strict=is_strict)


class _Plan:
    def __init__(self, plan: Json, pieces: Pieces, relaxed: Collection[int]) -> None:
        self._plan = plan
        self._pieces = pieces
        self._relaxed = relaxed
        self._rules = Rules(pieces)
        self._dropped: list[str] = []
        self._any_tool = ""
        self._lowered: dict[int, Lowered] = {}
        self._is_json = True

    def source(self) -> CallSource:
        plan = self._plan
        between = self._part(plan["between"])
        groups = plan["calls"]
        rests = [self._rules.rule(self._part(group["rest"])) for group in groups]
        marked = [
            f"{self._rules.marker(group['trigger'])} {rest}"
            for group, rest in zip(groups, rests, strict=True)
            if group["trigger"]
        ]
        firsts = [self._first(group, rest, between) for group, rest in zip(groups, rests, strict=True)]
        more = f"({between} ({' | '.join(marked)}))* {between}" if marked and plan["most"] is None else ""
        options = [*self._content(), *(f"{first} {more}" for first in firsts), *self._opened(rests, more)]
        lines = [f"start: {' | '.join(options)}", "TEXT: /(?s:.+)/", *self._rules.lines]
        return CallSource(
            "\n".join(lines), tuple(dict.fromkeys(self._dropped)), tuple(self._rules.doubtful), self._is_json
        )

    def _first(self, group: Json, rest: str, between: str) -> str:
        """An expression for the first calls, and for content before them."""
        if group["head"]:
            return f"{self._rules.rule(regex(group['head']), '[lazy]')} {rest}"
        if self._plan["content"] is True and group["follows_content"]:
            freely = f"(TEXT? {tokens})*" if (tokens := self._tokens()) else ""
            return f"{freely} {self._rules.text_until(group['trigger'])} {rest}"
        return f"{between} {self._rules.marker(group['trigger'])} {rest}"

    def _opened(self, rests: Sequence[str], more: str) -> list[str]:
        """Expressions for answers that continue after a marker at the end of the prompt."""
        plan = self._plan
        opened = plan["opened"]
        found = [
            f"{rest} {more}" for group, rest in zip(plan["calls"], rests, strict=True) if group["trigger"] == opened
        ]
        wrappers = [each[len(opened) :] for each in plan["wrappers"] if opened and each.startswith(opened)]
        if plan["content"] is True:
            found += [f"{self._rules.marker(wrapper)} {content}" for wrapper in wrappers for content in self._content()]
        return found if opened else []

    def _content(self) -> list[str]:
        """Expressions for an answer without calls."""
        content = self._plan["content"]
        if content is None:
            return []
        if content is not True:
            return [f"{self._part(self._plan['between'])} @content"]
        heads = [group["head"] for group in self._plan["calls"] if group["head"]]
        first = "TEXT"
        if heads:
            calls = regex(rf"\s*(?:{'|'.join(heads)})(?s:.*)")
            first = self._rules.terminal(f"/(?s:.+)/ & ~{calls}")
        return [f"{first}? ({tokens} TEXT?)*" if (tokens := self._tokens()) else f"{first}?"]

    def _tokens(self) -> str:
        """An expression for the markers around content that are single tokens; empty = there are none."""
        found = {piece for marker in self._plan["wrappers"] for piece in self._pieces(marker) if isinstance(piece, int)}
        return f"<[{','.join(map(str, sorted(found)))}]>" if found else ""

    def _part(self, part: Json) -> str:
        if is_list(part):
            return " ".join(filter(None, map(self._part, part)))
        match part:
            case str():
                return self._rules.marker(part)
            case {"any": options}:
                return f"({' | '.join(self._part(option) or EMPTY for option in options)})"
            case {"many": repeated, "least": least, "most": most}:
                inner = self._part(repeated)
                return f"({inner}){{{least},{'' if most is None else most}}}" if inner and most != 0 else ""
            case {"regex": expression}:
                return regex(expression)
            case {"tools": _}:
                if not self._any_tool:
                    options = " | ".join(self._part(option) for option in self._plan["options"])
                    self._any_tool = self._rules.rule(options)
                return self._any_tool
            case {"arguments": index}:
                return self._arguments(index)
            case {"whole": _}:
                return self._whole(part)
            case _:
                return self._members(part)

    def _whole(self, part: Json) -> str:
        definitions: dict[str, Json] = {}
        options: list[Json] = []
        for index in part["whole"]:
            text = json.dumps(self._schema(index)).replace(f'"$ref": "{PREFIX}', f'"$ref": "{PREFIX}{index}-')
            arguments = json.loads(text)
            definitions |= {f"{index}-{name}": each for name, each in arguments.pop("$defs").items()}
            name = {"const": self._plan["tools"][index]["name"]}
            options.append(_closed({part["name_key"]: name, part["arguments_key"]: arguments}))
        schema: Json = {"anyOf": options}
        if part["wrapper"]:
            items = {"type": "array", "items": schema, "minItems": 1}
            schema = _closed({part["wrapper"]: items | ({} if part["most"] is None else {"maxItems": part["most"]})})
        return self._rules.rule(json_rule(schema | {"$defs": definitions}))

    def _arguments(self, index: int) -> str:
        return self._rules.rule(json_rule(self._schema(index)))

    def _schema(self, index: int) -> dict[str, Json]:
        """The schema of a tool's arguments, with `$defs`."""
        if index not in self._lowered:
            lowered = Lowered(_OPEN, ()) if index in self._relaxed else tool_schema(self._plan["tools"][index])
            self._lowered[index] = lowered
            self._dropped += lowered.dropped
        return {"$defs": {}} | self._lowered[index].schema

    def _members(self, part: Json) -> str:
        self._is_json = False
        schema = self._schema(part["members"])
        options = [each for each in _objects(schema, schema["$defs"]) if is_object(each)]
        try:
            return f"({' | '.join(self._object(each, schema['$defs'], part) for each in options)})"
        except PatternError as error:
            tool = self._plan["tools"][part["members"]]
            reason = f"the tool `{tool['name']}`: {error}"
            if tool["is_strict"]:
                raise UnsupportedSchema(reason, pointer="", keyword="pattern", reason=str(error)) from None
            self._dropped.append(reason)
            return self._object(_OPEN, {}, part)

    def _object(self, schema: Json, definitions: dict[str, Json], part: Json) -> str:
        if part["notation"] == "tagged":
            return _Tagged(self._rules, definitions, part, self._part).members(schema)
        notation = Python(self._rules) if part["notation"] == "python" else Bare(self._rules, part["quote"])
        values = Values(self._rules, notation, definitions, _GAP)
        after_key = "=" if part["notation"] == "python" else ":"
        return values.object_members(schema, after_key, lambda name: f"/{literal(name)}/", f"/{KEY}/")


class _Tagged:
    """Writes the rules for arguments between markers: strings as raw text, other values as JSON.

    Args:
        rules: the rules of the grammar, to which rules are added.
        definitions: the `$defs` of the tool's schema.
        part: the part of the plan that describes the notation.
        render: converts any part of the plan to an expression.
    """

    def __init__(self, rules: Rules, definitions: dict[str, Json], part: Json, render: Callable[[Json], str]) -> None:
        self._rules = rules
        self._definitions = definitions
        self._part = part
        self._render = render
        self._gap = render(part["gap"])

    def members(self, schema: Json) -> str:
        required = set(schema.get("required", ()))
        named = [
            (self._member(f"/{literal(name)}/", value, is_text=name in self._part["texts"]), name in required)
            for name, value in schema.get("properties", {}).items()
            if value is not False
        ]
        rest = schema.get("additionalProperties", True)
        if named or rest is False or schema.get("patternProperties"):
            demand_named(schema)
            return f"{self._rules.members(named, '')} {self._gap}"
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", MAX_FREE)
        return f"({self._member(f'/{KEY}/', rest, is_text=False)}){{{least},{most}}} {self._gap}"

    def _member(self, key: str, schema: Json, *, is_text: bool) -> str:
        start, end = (self._rules.marker(marker) for marker in self._part["key"])
        attributes = self._part["attributes"]
        if attributes is None:
            return self._rules.rule(f"{self._gap} {start} {key} {end} {self._value(schema, is_text)}")
        text, *others = (self._rules.marker(attribute) for attribute in attributes)
        before = self._render(self._part["before_value"])
        options: list[str] = []
        found = set(kinds(schema, self._definitions))
        if found & {"string", "any"}:
            options.append(
                f"{text} {before} {self._raw(text_terminal(strings(schema, self._definitions), self._definitions))}"
            )
        if found != {"string"}:
            options.append(f"({' | '.join(others)}) {before} {self._json(schema)}")
        return self._rules.rule(f"{self._gap} {start} {key} {end} ({' | '.join(options)})")

    def _value(self, schema: Json, is_text: bool) -> str:
        """A value in a notation without attributes, so that its type must be recognized from the value."""
        before = self._render(self._part["before_value"])
        if is_text:
            return f"{before} {self._raw(text_terminal(schema, self._definitions))}"
        found = set(kinds(schema, self._definitions))
        options = [self._json(schema)] if found != {"string"} else []
        if found & {"string", "any"}:
            wanted = text_terminal(strings(schema, self._definitions), self._definitions)
            loose = rf"({loose_terminal(wanted)}) /\n?/"
            options.append(f"(/\\n/)? {self._rules.text_until(self._part['value_end'], loose)}")
            options.append(f"{self._gap} {self._rules.terminal(quoted_terminal(wanted))} {self._gap} {self._end}")
        words = [word for kind, word in _WORDS.items() if kind in found]
        if words:
            options.append(f"{self._gap} /{'|'.join(words)}/ {self._gap} {self._end}")
        return f"{before} ({' | '.join(options)})"

    @property
    def _end(self) -> str:
        return self._rules.marker(self._part["value_end"])

    def _json(self, schema: Json) -> str:
        """A value as JSON, except strings: a quoted string could contain the end marker."""
        schema = without_strings(schema, self._definitions)
        return f"{self._gap} {self._rules.json(schema, self._definitions)} {self._gap} {self._end}"

    def _raw(self, wanted: str | None) -> str:
        if wanted is not None and self._part["trims"]:
            wanted = rf"(/\n/ ({wanted}) /\n/) | (({wanted}) & ~/\n(?s:.*)/ & ~/(?s:.*)\n/)"
        opening, closing = self._part["quotes"]
        if not opening:
            return self._rules.text_until(self._part["value_end"], wanted)
        quoted = f"{self._rules.marker(opening)} {self._rules.text_until(closing, wanted)} {self._end}"
        plain = "/[^<]*/" if wanted is None else f"({wanted}) & /[^<]*/"
        return f"({quoted} | {self._rules.text_until(self._part['value_end'], plain)})"


def _closed(properties: dict[str, Json]) -> Json:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _objects(schema: Json, definitions: dict[str, Json]) -> list[Json]:
    """The object schemas among the alternatives of a lowered schema."""
    if "$ref" in schema:
        return _objects(definitions[schema["$ref"].removeprefix(PREFIX)], definitions)
    if "anyOf" in schema:
        return [found for option in schema["anyOf"] for found in _objects(option, definitions)]
    return [schema] if schema.get("type") == "object" else []
