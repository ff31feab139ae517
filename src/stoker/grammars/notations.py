"""Writes rules of the grammar engine for values of a lowered schema in notations other than JSON.

Independent of tool calls. Values that have the same form in JSON are left to the engine's own rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from stoker.grammars.patterns import PatternError, literal
from stoker.grammars.raw_text import ANY_TEXT, exact, text_terminal
from stoker.grammars.references import Json, is_list, is_object
from stoker.grammars.schemas import PREFIX

ESCAPES: Final = 'nrbtf\\"'
"""Allowed escapes, without `u`: if a key had two spellings, it could be written twice, also as a forbidden key."""
WHITESPACE: Final = r"[ ]|\r?\n[ \t]{0,40}"
"""One space, or a line break with an indent: the white space that models write, with a limited length."""
MAX_ANY_ORDER: Final = 64
"""Maximum number of members that may have any order; with more members, the order is that of the schema."""
MAX_FREE: Final = 64
"""Maximum number of members that the schema does not name."""
KEY: Final = r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}"
_PATTERN_SIGN: Final = "(?:"
"""Occurs in every expression from a pattern or format, but not in the spelling of values."""
_ESCAPED: Final = r"\\[nrtbf\\'\"]|\\u[0-9a-fA-F]{4}"
_SINGLE: Final = rf"/'(?:[^'\\]|{_ESCAPED})*'/"
_DOUBLE: Final = rf'/"(?:[^"\\]|{_ESCAPED})*"/'


Pieces: TypeAlias = "Callable[[str], Sequence[str | int]]"
"""Splits a marker into special tokens, as ids, and the text between them, without end-of-generation tokens."""
EMPTY: Final = '""'


class Rules:
    """The rules of one grammar. Each rule gets a name when it is added; equal rules are added once."""

    def __init__(self, pieces: Pieces) -> None:
        self.lines: list[str] = []
        self.doubtful: dict[str, None] = {}
        """Bodies of terminals that possibly match no text, because a pattern contradicts a notation."""
        self._known: dict[str, str] = {}
        self._pieces = pieces

    def marker(self, marker: str) -> str:
        """An expression for a marker; empty for an end-of-generation token."""
        pieces = [f"<[{piece}]>" if isinstance(piece, int) else f"/{literal(piece)}/" for piece in self._pieces(marker)]
        return " ".join(pieces)

    def text_until(self, marker: str, wanted: str | None = None) -> str:
        """An expression for text that does not contain a marker, followed by the marker.

        Args:
            marker: the marker that ends the text.
            wanted: the body of a terminal that the text must match; None = any text.
        """
        pieces = self._pieces(marker)
        end = pieces[0] if pieces and isinstance(pieces[0], str) else ""
        closing = f" /{literal(end)}/" if end else ""
        if len(pieces) > bool(end):
            rest = " ".join(
                f"<[{piece}]>" if isinstance(piece, int) else f"/{literal(piece)}/" for piece in pieces[bool(end) :]
            )
            return f"{self.terminal(f'({wanted or ANY_TEXT}){closing}')} {rest}"
        if wanted is None:
            return self.rule(f"/(?s:.*){literal(end)}/", "[lazy]")
        return self.terminal(f"(({wanted}) & ~/(?s:.*){literal(end)}(?s:.*)/){closing}")

    def rule(self, body: str, options: str = "") -> str:
        """Adds a rule, if no equal one exists; returns its name."""
        return self._add(f"r{len(self.lines)}", options, body)

    def terminal(self, body: str) -> str:
        """Adds a terminal, which is a single lexeme; returns its name."""
        if _PATTERN_SIGN in body:
            self.doubtful[body] = None
        return self._add(f"T{len(self.lines)}", "", body)

    def recursive(self, make: Callable[[str], str]) -> str:
        """Adds a rule that may be recursive; `make` gets its name and returns its body. Returns the name."""
        name = f"q{len(self.lines)}"
        at = len(self.lines)
        self.lines.append("")
        self.lines[at] = f"{name}: {make(name)}"
        return name

    def json(self, schema: Json, definitions: dict[str, Json]) -> str:
        """Adds a rule for a JSON value that satisfies a lowered schema; returns its name."""
        return self.rule(json_rule((schema if is_object(schema) else {}) | {"$defs": _used(schema, definitions)}))

    def members(self, named: Sequence[tuple[str, bool]], separator: str) -> str:
        """An expression for members: each at most once, and all required ones.

        Args:
            named: an expression for each member, and whether the member is required.
            separator: an expression for the separator between two members; may be empty.
        """
        if len(named) > MAX_ANY_ORDER:
            return self._in_order(named, separator)
        named = [*[each for each in named if each[1]], *[each for each in named if not each[1]]]
        if not named:
            return '""'
        num_required = sum(is_required for _, is_required in named)
        done = f'"" %if is_ones([0:{num_required}])' if num_required else '""'
        at = len(self.lines)
        rest = [f"{separator} {part} p{at}::set_bit({bit}) %if bit_clear({bit})" for bit, (part, _) in enumerate(named)]
        self.lines.append(f"p{at}::_: " + " | ".join([done, *rest]))
        if not separator:
            return f"p{at}::0x0"
        first = [f"{part} p{at}::set_bit({bit})" for bit, (part, _) in enumerate(named)]
        self.lines.append(f"f{at}::_: " + " | ".join([*first, *([] if num_required else ['""'])]))
        return f"f{at}::0x0"

    def _in_order(self, named: Sequence[tuple[str, bool]], separator: str) -> str:
        first = rest = EMPTY
        for part, is_required in reversed(named):
            first = self.rule(f"{part} {rest}" if is_required else f"{part} {rest} | {first}")
            rest = self.rule(f"{separator} {part} {rest}" if is_required else f"({separator} {part})? {rest}")
        return first

    def _add(self, name: str, options: str, body: str) -> str:
        key = f"{name[0]}{options}: {body}"
        if key not in self._known:
            self._known[key] = name
            self.lines.append(f"{name}{options}: {body}")
        return self._known[key]


class Notation(Protocol):
    """A notation for values."""

    words: dict[str, tuple[str, ...]]
    """The spellings of `true`, `false` and `null`."""
    bare_keys: bool

    def text(self, wanted: str | None) -> str:
        """An expression for a string with its quotes.

        Args:
            wanted: the body of a terminal that the string must match; None = any string.
        """
        ...

    def spelled(self, text: str) -> str:
        """An expression for exactly this string with its quotes."""
        ...


class Python:
    """Python literals. The words `true`, `false` and `null` of JSON are accepted, too."""

    words: dict[str, tuple[str, ...]] = {  # noqa: RUF012
        "true": ("True", "true"),
        "false": ("False", "false"),
        "null": ("None", "null"),
    }
    bare_keys = False

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def text(self, wanted: str | None) -> str:
        """See `Notation.text`."""
        if wanted is None:
            return f"({_SINGLE} | {_DOUBLE})"
        options = [(quote, self._rules.terminal(f"({wanted}) & /[^{quote}\\\\]*/")) for quote in ("'", '"')]
        return _any(f"/{quote}/ {body} /{quote}/" for quote, body in options)

    def spelled(self, text: str) -> str:
        """See `Notation.spelled`."""
        return f"/{literal(repr(text))}/"


class Bare:
    """Strings between markers, without escapes; keys have no quotes."""

    words: dict[str, tuple[str, ...]] = {"true": ("true",), "false": ("false",), "null": ("null", "None")}  # noqa: RUF012
    bare_keys = True

    def __init__(self, rules: Rules, quote: str) -> None:
        self._rules = rules
        self._quote = quote

    def text(self, wanted: str | None) -> str:
        """See `Notation.text`."""
        return f"{self._rules.marker(self._quote)} {self._rules.text_until(self._quote, wanted)}"

    def spelled(self, text: str) -> str:
        """See `Notation.spelled`."""
        return self.text(exact(text))


class Values:
    """Writes the values of one lowered schema in a notation.

    Args:
        rules: the rules of the grammar, to which rules are added.
        notation: the notation of the values.
        definitions: the `$defs` of the schema.
        gap: an expression for optional white space.
    """

    def __init__(self, rules: Rules, notation: Notation, definitions: dict[str, Json], gap: str) -> None:
        self._rules = rules
        self._notation = notation
        self._definitions = definitions
        self._gap = gap
        self._comma = f"{gap} /,/ {gap}"
        self._named: dict[str, str] = {}

    def value(self, schema: Json) -> str:
        """An expression for the values that satisfy a schema."""
        if schema is True or schema == {}:
            return self._anything()
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return _any(self.value(option) for option in schema["anyOf"])
        if "enum" in schema or "const" in schema:
            return _any(self.spelled(value) for value in schema.get("enum", [schema.get("const")]))
        match schema.get("type"):
            case "string":
                return self._text(schema)
            case "boolean":
                return self._words("true", "false")
            case "null":
                return self._words("null")
            case "array":
                return self._array(schema)
            case "object":
                members = self.object_members(schema, ":", self._key, self._free_key())
                return f"/\\{{/ {self._gap} {members} {self._gap} /\\}}/"
            case _:
                return self._rules.json(schema, {})

    def object_members(self, schema: Json, after_key: str, key: Callable[[str], str], free_key: str) -> str:
        """An expression for the members of an object, without delimiters around them.

        Args:
            schema: the schema of the object.
            after_key: the text between a key and its value.
            key: returns an expression for a key.
            free_key: an expression for keys that the schema does not name.
        """
        colon = f"/{literal(after_key)}/ {self._gap}"
        required = set(schema.get("required", ()))
        named = [
            (self._rules.rule(f"{key(name)} {colon} {self.value(part)}"), name in required)
            for name, part in schema.get("properties", {}).items()
            if part is not False
        ]
        rest = schema.get("additionalProperties", True)
        if named or rest is False or schema.get("patternProperties"):
            demand_named(schema)
            return self._rules.members(named, self._comma)
        member = f"{free_key} {colon} {self.value(rest)}"
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", MAX_FREE)
        return self._rules.rule(_listed(member, self._comma, least, most))

    def spelled(self, value: Json) -> str:
        """An expression for exactly this value."""
        if is_list(value):
            return f"/\\[/ {f' {self._comma} '.join(map(self.spelled, value))} /\\]/"
        if is_object(value):
            parts = [f"{self._key(name)} /:/ {self._gap} {self.spelled(part)}" for name, part in value.items()]
            return f"/\\{{/ {f' {self._comma} '.join(parts)} /\\}}/"
        if isinstance(value, str):
            return self._notation.spelled(value)
        spelled = json.dumps(value)
        return self._words(spelled) if spelled in self._notation.words else f"/{literal(spelled)}/"

    def _reference(self, reference: str) -> str:
        name = reference.removeprefix(PREFIX)
        if name not in self._named:

            def body(rule: str) -> str:
                self._named[name] = rule
                return self.value(self._definitions[name])

            return self._rules.recursive(body)
        return self._named[name]

    def _words(self, *names: str) -> str:
        return _any(f"/{word}/" for name in names for word in self._notation.words[name])

    def _text(self, schema: Json) -> str:
        return self._notation.text(text_terminal(schema, self._definitions))

    def _key(self, name: str) -> str:
        if self._notation.bare_keys:
            return f"/{literal(name)}/"
        return self.spelled(name)

    def _free_key(self) -> str:
        if self._notation.bare_keys:
            return f"/{KEY}/"
        return self._notation.text(f"/{KEY}/")

    def _array(self, schema: Json) -> str:
        first = [self.value(part) for part in schema.get("prefixItems", ())]
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        rest = schema.get("items", True)
        return f"/\\[/ {self._gap} {self._items(first, rest, least, most)} {self._gap} /\\]/"

    def _items(self, first: list[str], rest: Json, least: int, most: int | None) -> str:
        most = len(first) if rest is False else most
        first = first if most is None else first[:most]
        item = "" if rest is False else self.value(rest)
        if not first:
            return self._rules.rule(_listed(item, self._comma, least, most))
        found = _repeated(f"({self._comma} {item})", least - len(first), most, len(first)) if item else ""
        for index in range(len(first) - 1, 0, -1):
            found = f"{self._comma} {first[index]} {found}"
            found = found if index < least else f"({found})?"
        found = f"{first[0]} {found}"
        return self._rules.rule(found if least else f'{found} | ""')

    def _anything(self) -> str:
        def body(rule: str) -> str:
            number = self._rules.json({"type": "number"}, {})
            items = f"/\\[/ {self._gap} ({rule} ({self._comma} {rule})*)? {self._gap} /\\]/"
            member = f"{self._free_key()} {self._gap} /:/ {self._gap} {rule}"
            members = f"/\\{{/ {self._gap} ({member} ({self._comma} {member})*)? {self._gap} /\\}}/"
            return _any([self._notation.text(None), number, self._words("true", "false", "null"), items, members])

        if "" not in self._named:
            self._named[""] = self._rules.recursive(body)
        return self._named[""]


def demand_named(schema: dict[str, Json]) -> None:
    """Raises:
    PatternError: the object needs members that the schema does not name, which is not supported beside named ones.
    """
    if schema.get("minProperties", 0) > len(schema.get("required", ())):
        raise PatternError("`minProperties` stands beside named members")


def _listed(part: str, separator: str, least: int, most: int | None) -> str:
    """The body of a rule for `least` to `most` repetitions of a part."""
    if not part or most == 0:
        return EMPTY
    found = f"{part} {_repeated(f'({separator} {part})', least - 1, most, 1)}"
    return found if least else f"{found} | {EMPTY}"


def _repeated(part: str, least: int, most: int | None, known: int) -> str:
    """The remaining repetitions of a part, if `known` of at most `most` have been written."""
    if most is not None and most <= known:
        return ""
    return f"{part}{{{max(0, least)},{'' if most is None else most - known}}}"


def json_rule(schema: dict[str, Json]) -> str:
    """The body of a rule for a JSON value."""
    options = {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": ESCAPES}
    return f"%json {json.dumps(schema | {'x-guidance': options})}"


def _any(options: Iterable[str]) -> str:
    return f"({' | '.join(options)})"


def _used(schema: Json, definitions: dict[str, Json]) -> dict[str, Json]:
    """The definitions that a schema refers to, directly or indirectly."""
    found: dict[str, Json] = {}
    pending = [schema]
    while pending:
        part = pending.pop()
        if is_list(part):
            pending += part
        elif is_object(part):
            name = part.get("$ref")
            if isinstance(name, str) and name.startswith(PREFIX) and (name := name.removeprefix(PREFIX)) not in found:
                found[name] = definitions[name]
                pending.append(definitions[name])
            pending += part.values()
    return found
