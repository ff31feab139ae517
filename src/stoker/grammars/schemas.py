"""Lowers JSON schemas to equivalent or stricter ones that the grammar engine enforces completely. Compiles nothing.

Every value that the result accepts, the original schema accepts, too; the result may accept fewer values. A keyword
that can be neither enforced nor narrowed is refused, or dropped and listed. The result has no conjunctions: they are
computed here, and each conjunction that is referred to becomes a definition, so that recursive schemas terminate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Final

from stoker.errors import GrammarInvalid, GrammarTooComplex, UnsupportedSchema
from stoker.grammars.conjunction import Conjunctions, Ledger
from stoker.grammars.flat import NUMBERS, Flat, as_bound, can_spell, identity, type_of
from stoker.grammars.objects import object_schemas
from stoker.grammars.patterns import PatternError, rust_pattern
from stoker.grammars.productive import PREFIX, any_of, productive
from stoker.grammars.references import Document, Json, Node, is_list

MAX_TEXT: Final = 1 << 20
"""Maximum length of a schema, in characters."""
MAX_ITEMS: Final = 2_000
"""Maximum number of items of an array with a limited length: the engine makes a rule for each item."""
MAX_VALUES: Final = 50_000
MAX_UNIQUE: Final = 512
"""Maximum number of combinations of unique items."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema that the grammar engine enforces."""

    schema: Json
    dropped: tuple[str, ...]
    """The parts of the original schema that are not enforced, in words; empty in strict mode."""


def parse_json(text: str) -> Json:
    """Raises:
    GrammarInvalid: the text is not JSON.
    GrammarTooComplex: the text is too long, or nested too deeply.
    """
    if len(text) > MAX_TEXT:
        raise GrammarTooComplex(f"the schema has over {MAX_TEXT} characters")
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise GrammarTooComplex("the schema is nested too deeply") from None
    except ValueError as error:
        raise GrammarInvalid(f"the schema is not valid JSON: {error}") from None


def _no_number(name: str) -> Json:
    raise ValueError(f"`{name}` is not JSON")


def lower_schema(schema: Json, *, is_strict: bool = True) -> Lowered:
    """Lowers a schema of draft 4 or later to one that the engine enforces.

    Args:
        schema: the schema, as from `parse_json`.
        is_strict: refuse keywords that cannot be enforced; otherwise they are dropped and listed.

    Raises:
        GrammarInvalid: the value is not a schema.
        GrammarTooComplex: the schema is nested too deeply, or has too many combinations.
        UnsupportedSchema: a keyword cannot be enforced, or nothing satisfies the schema.
    """
    if not isinstance(schema, (dict, bool)):
        raise GrammarInvalid("a JSON schema is an object, `true` or `false`")
    ledger = Ledger(is_strict)
    try:
        found = _Lowering(Document(schema), ledger).run()
    except RecursionError:
        raise GrammarTooComplex("the schema is nested too deeply") from None
    return Lowered(found, tuple(ledger.dropped))


class _Lowering:
    def __init__(self, document: Document, ledger: Ledger) -> None:
        self._document = document
        self._ledger = ledger
        self._conjunctions = Conjunctions(document, ledger)
        self._names: dict[frozenset[Node], str] = {}
        self._made: dict[Node, Json] = {}
        self._pending: list[tuple[str, tuple[Node, ...]]] = []

    def run(self) -> Json:
        root = self._define((self._document.root,))
        found: dict[str, Json] = {}
        while self._pending:
            name, nodes = self._pending.pop()
            found[name] = self._lowered(nodes)
        found = productive(found)
        if root not in found:
            raise UnsupportedSchema("nothing satisfies the schema", pointer="", keyword="", reason="it is empty")
        return {"$ref": PREFIX + root, "$defs": found}

    def child(self, nodes: Iterable[Node]) -> Json:
        """The lowered schema for values that satisfy all of the nodes."""
        known = list(dict.fromkeys(node for node in nodes if node.schema is not True))
        if any(node.schema is False for node in known):
            return False
        if not known:
            return True
        if len(known) == 1 and not self._conjunctions.is_reference(known[0]):
            if known[0] not in self._made:
                self._made[known[0]] = self._lowered(known)
            return self._made[known[0]]
        return {"$ref": PREFIX + self._define(known)}

    def admits(self, nodes: Iterable[Node], value: Json) -> bool:
        """Whether a value satisfies all of the nodes; False if that cannot be determined."""
        try:
            return can_spell(value) and self._conjunctions.admits(nodes, value)
        except PatternError:
            return False

    def flats(self, nodes: Iterable[Node]) -> list[Flat]:
        """See `Conjunctions.flats`."""
        return self._conjunctions.flats(nodes)

    def refuse(self, keyword: str, reason: str, where: Flat | Node) -> None:
        """See `Ledger.refuse`."""
        node = where.origin(keyword) if isinstance(where, Flat) else where
        self._ledger.refuse(node or self._document.root, keyword, reason)

    def _define(self, nodes: Sequence[Node]) -> str:
        nodes = self._targets(nodes)
        key = frozenset(nodes)
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            self._pending.append((self._names[key], tuple(nodes)))
        return self._names[key]

    def _targets(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes, with those that are only a `$ref` replaced by their targets."""
        found: dict[Node, None] = {}
        for node in nodes:
            passed = {node}
            while self._conjunctions.is_reference(node):
                target = self._conjunctions.follow(node)
                node = node.derived(True) if target is None else target
                if node in passed:
                    self._ledger.refuse(node, "$ref", "it refers to itself without end")
                    node = node.derived(True)
                passed.add(node)
            found[node] = None
        return list(found)

    def _lowered(self, nodes: Sequence[Node]) -> Json:
        options = self._plain_options(nodes)
        if options is not None:
            return any_of(self.child([option]) for option in options)
        return any_of(self._of_flat(flat) for flat in self._conjunctions.flats(nodes))

    def _plain_options(self, nodes: Sequence[Node]) -> list[Node] | None:
        """The options of an `anyOf` without other keywords, so that options that are references stay references."""
        if len(nodes) != 1 or not is_list(options := nodes[0].keywords.get("anyOf")):
            return None
        if not self._conjunctions.stands_alone(nodes[0], "anyOf"):
            return None
        return [self._document.child(nodes[0], "anyOf", index) for index in range(len(options))]

    def _of_flat(self, flat: Flat) -> Json:
        if flat.is_free:
            return True
        if flat.values is not None:
            return self._values(flat, flat.values)
        simple = [{"type": name} for name in ("null", "boolean") if name in flat.types]
        makers: dict[str, Callable[[], Iterable[Json]]] = {
            "number": lambda: self._numbers(flat),
            "string": lambda: self._strings(flat),
            "array": lambda: self._arrays(flat),
            "object": lambda: object_schemas(flat, self),
        }
        kinds = {"number" if name in NUMBERS else name for name in flat.types}
        return any_of([*simple, *(schema for kind, make in makers.items() if kind in kinds for schema in make())])

    def _values(self, flat: Flat, values: list[Json]) -> Json:
        if len(values) > MAX_VALUES:
            raise GrammarTooComplex(f"an `enum` has over {MAX_VALUES} values")
        found = [value for value in values if self._admits(flat, value)]
        return {"enum": found} if found else False

    def _admits(self, flat: Flat, value: Json) -> bool:
        try:
            return can_spell(value) and self._conjunctions.flat_admits(flat, value)
        except PatternError:
            return False

    def _numbers(self, flat: Flat) -> Iterable[Json]:
        kinds = flat.types & NUMBERS
        if kinds == frozenset({"fraction"}):
            if flat.types == kinds:
                self.refuse("type", "numbers that are not integers cannot be told apart from those that are", flat)
            return
        kind = "integer" if kinds == frozenset({"integer"}) else "number"
        if flat.is_void("integer" if kind == "integer" else "fraction"):
            return
        keywords = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        limits = {key: as_bound(key, flat.limits[key]) for key in keywords if key in flat.limits}
        yield {"type": kind} | limits | _picked(flat.limits, "multipleOf")

    def _strings(self, flat: Flat) -> Iterable[Json]:
        if flat.is_void("string"):
            return
        demands: list[Json] = [{"type": "string", "format": name} for name in dict.fromkeys(flat.formats)]
        for pattern in dict.fromkeys(flat.patterns):
            try:
                demands.append({"type": "string", "pattern": rust_pattern(pattern)})
            except PatternError as error:
                self.refuse("pattern", f"{identity(pattern)}: {error}", flat)
        limits = {"type": "string"} | _picked(flat.limits, "minLength", "maxLength")
        yield limits if not demands else limits | demands[0] | ({"allOf": demands[1:]} if demands[1:] else {})

    def _arrays(self, flat: Flat) -> Iterable[Json]:
        first = [
            self.child(flat.item(index)) for index in range(max((len(each.first) for each in flat.items), default=0))
        ]
        limits = _picked(flat.limits, "minItems", "maxItems")
        if limits.get("minItems", 0) > MAX_ITEMS:
            raise GrammarTooComplex(
                f"an array has at least {limits['minItems']} items; at most {MAX_ITEMS} can be wanted"
            )
        if "maxItems" in limits:
            limits["maxItems"] = min(limits["maxItems"], MAX_ITEMS)
        rest = flat.item(len(first))
        if flat.unique is not None and limits.get("maxItems", inf) > 1:
            values = [] if first else self._enumerated(rest)
            if values is None or first:
                self.refuse("uniqueItems", "the items are not listed in an `enum`", flat.unique)
            else:
                yield from self._chosen(values, limits, flat.unique)
                return
        yield {"type": "array", "prefixItems": first, "items": self.child(rest)} | limits

    def _enumerated(self, nodes: list[Node]) -> list[Json] | None:
        """All values that satisfy the schemas; None if the schemas do not enumerate their values."""
        found: dict[str, Json] = {}
        for flat in self.flats(nodes):
            values = flat.values
            if values is None and flat.types <= {"null", "boolean"}:
                values = [value for value in (None, False, True) if type_of(value) in flat.types]
            if values is None:
                return None
            found |= {identity(value): value for value in values if self._admits(flat, value)}
        return list(found.values())

    def _chosen(self, values: list[Json], limits: dict[str, int], node: Node) -> Iterable[Json]:
        """Schemas for arrays with unique items: each combination of the values, in the order of the schema."""
        sizes = range(limits.get("minItems", 0), min(len(values), limits.get("maxItems", len(values))) + 1)
        found: list[Json] = []
        for size in sizes:
            for chosen in combinations(values, size):
                found.append({"const": list(chosen)})
                if len(found) > MAX_UNIQUE:
                    self.refuse("uniqueItems", f"there are over {MAX_UNIQUE} ways to choose the items", node)
                    return
        yield from found


def _picked(limits: dict[str, Json], *names: str) -> dict[str, Json]:
    return {name: limits[name] for name in names if name in limits}
