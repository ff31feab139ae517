"""Resolves conjunctions of schemas to direct requirements: one `Flat` for each alternative that satisfies them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from stoker.errors import GrammarTooComplex, UnsupportedSchema
from stoker.grammars.flat import ALL_TYPES, LEAST, MOST, NUMBERS, Choice, Flat, Items, Properties, identity
from stoker.grammars.negation import Negator
from stoker.grammars.patterns import PatternError, conjuncts
from stoker.grammars.references import Document, Json, Node, is_list, is_object

MAX_FLATS: Final = 20_000
"""Maximum number of alternatives for all conjunctions of a document."""
MAX_WAYS: Final = 512
"""Maximum number of alternatives for one conjunction."""

_FORMATS: Final = {
    "date": r"^\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))$",
    "time": r"^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$",
    "duration": r"^P(\d{1,4}W|(\d{1,4}D|\d{1,4}M(\d{1,4}D)?|\d{1,4}Y(\d{1,4}M(\d{1,4}D)?)?)(T(HOUR|MINUTE|SECOND))?"
    r"|T(HOUR|MINUTE|SECOND))$".replace("HOUR", r"\d{1,4}H(MINUTE)?")
    .replace("MINUTE", r"\d{1,4}M(SECOND)?")
    .replace("SECOND", r"\d{1,4}S"),
    "hostname": r"^[a-zA-Z0-9](-?[a-zA-Z0-9]){0,20}(\.[a-zA-Z0-9](-?[a-zA-Z0-9]){0,20}){0,4}$",
}
"""Patterns of formats. The engine's own ignore the calendar and some rules of host names, and do not limit numbers."""
_PATTERNS: Final = {**_FORMATS, "date-time": _FORMATS["date"][:-1] + "T" + _FORMATS["time"][1:]}
_OF_ENGINE: Final = ("email", "ipv4", "ipv6", "uuid", "uri")

_LISTS: Final = ("allOf", "anyOf", "oneOf", "enum", "required", "prefixItems")
_MAPS: Final = ("properties", "patternProperties", "dependencies", "dependentRequired", "dependentSchemas")
_SCHEMAS: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_MEMBERS: Final = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
_ITEMS: Final = ("prefixItems", "items", "additionalItems", "unevaluatedItems")
_APPLICATORS: Final = frozenset(
    {
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "dependencies",
        "dependentSchemas",
        "contains",
    }
)


@dataclass
class Ledger:
    """Records keywords that cannot be enforced: raises an error in strict mode, lists them otherwise."""

    is_strict: bool
    dropped: list[str] = field(default_factory=list[str])

    def refuse(self, node: Node, keyword: str, reason: str) -> None:
        """Records that a keyword is dropped.

        Raises:
            UnsupportedSchema: strict mode.
        """
        message = f"`{keyword}` at `{node.pointer or '/'}`: {reason}"
        if self.is_strict:
            raise UnsupportedSchema(
                f"the schema cannot be enforced: {message}", pointer=node.pointer, keyword=keyword, reason=reason
            )
        if message not in self.dropped:
            self.dropped.append(message)


class Conjunctions:
    """Computes conjunctions of the schemas in one document."""

    def __init__(self, document: Document, ledger: Ledger) -> None:
        self._document = document
        self._ledger = ledger
        self._negator = Negator(self.follow, _is_well_formed)
        self._num_flats = 0

    def flats(self, nodes: Iterable[Node]) -> list[Flat]:
        """The alternatives of a conjunction: a value that satisfies one of them satisfies all of the schemas."""
        flat = Flat()
        for node in nodes:
            self._add(flat, node, ())
        found: list[Flat] = []
        for each in self._expand(flat):
            found.append(each)
            self._num_flats += 1
            if len(found) > MAX_WAYS or self._num_flats > MAX_FLATS:
                raise GrammarTooComplex("the schema has too many combinations of alternatives")
        return found

    def follow(self, node: Node) -> Node | None:
        """The target of the `$ref` of a schema; None = the reference cannot be resolved and is dropped."""
        try:
            return self._document.resolve(node, node.schema["$ref"])
        except (LookupError, ValueError, AttributeError) as error:
            self._ledger.refuse(node, "$ref", str(error).strip("'\""))
            return None

    def is_reference(self, node: Node) -> bool:
        """Whether a schema has no requirements of its own, only a `$ref`."""
        return "$ref" in node.keywords and (self._document.draft <= 7 or self.stands_alone(node, "$ref"))

    def stands_alone(self, node: Node, keyword: str) -> bool:
        """Whether a schema has no other keyword that restricts values."""
        return not any(key in _KEYWORDS for key in node.keywords if key != keyword)

    def admits(self, nodes: Iterable[Node], value: Json) -> bool:
        """Whether a value satisfies all of the schemas, apart from formats that only the engine knows."""
        return any(self.flat_admits(flat, value) for flat in self.flats(nodes))

    def flat_admits(self, flat: Flat, value: Json) -> bool:
        """Whether a value satisfies one conjunction."""
        if flat.values is not None and identity(value) not in map(identity, flat.values):
            return False
        if is_object(value) and "object" in flat.types:
            return self._admits_object(flat, value)
        if is_list(value) and "array" in flat.types:
            return self._admits_array(flat, value)
        return flat.admits_scalar(value)

    def _admits_object(self, flat: Flat, value: dict[str, Json]) -> bool:
        return (
            flat.required.keys() <= value.keys()
            and flat.spans("Properties", len(value))
            and all(self.admits(flat.members(name), item) for name, item in value.items())
            and all(self.admits(flat.names, name) for name in value)
        )

    def _admits_array(self, flat: Flat, value: list[Json]) -> bool:
        return (
            flat.spans("Items", len(value))
            and all(self.admits(flat.item(index), item) for index, item in enumerate(value))
            and (flat.unique is None or len(set(map(identity, value))) == len(value))
        )

    def _expand(self, flat: Flat) -> Iterator[Flat]:
        if not flat.types or flat.values == []:
            return
        if not flat.choices:
            yield flat
            return
        choice = flat.choices.pop(0)
        ways = self._exclusive(flat, choice) if choice.is_exclusive else [[option] for option in choice.options]
        for nodes in ways:
            yield from self._expand(self._with(flat, nodes))

    def _with(self, flat: Flat, nodes: Iterable[Node]) -> Flat:
        branch = flat.copy()
        for node in nodes:
            self._add(branch, node, ())
        return branch

    def _exclusive(self, flat: Flat, choice: Choice) -> Iterator[list[Node]]:
        """The options of a `oneOf`, each with schemas that exclude the other options."""
        branches = [(option, self._with(flat, [option])) for option in choice.options]
        live = [(option, branch) for option, branch in branches if branch.types and branch.values != []]
        for option, branch in live:
            others = [other for other, rival in live if rival is not branch and not self._disjoint(branch, rival)]
            yield [option, *(self._breaking(branch, other, choice, keeps_all=len(live) <= 3) for other in others)]

    def _breaking(self, branch: Flat, other: Node, choice: Choice, *, keeps_all: bool) -> Node:
        negation = self._negator.negate(other)
        fitting = [each for each in negation.options if self._is_open(self._with(branch, [other.derived(each)]))]
        if not fitting and not negation.is_exact:
            self._ledger.refuse(choice.origin, "oneOf", f"`{other.pointer}` may hold together with another option")
            return choice.origin.derived(True)
        return other.derived({"anyOf": fitting if keeps_all else fitting[:1]})

    def _is_open(self, flat: Flat) -> bool:
        """Whether some value may satisfy the conjunction, by a quick check."""
        try:
            is_banned = any(node.schema is False for name in flat.required for node in flat.members(name))
        except PatternError:
            is_banned = False
        types = flat.types - {"object"} if is_banned else flat.types
        return bool(types) and flat.values != [] and types != frozenset({"fraction"})

    def _disjoint(self, one: Flat, other: Flat) -> bool:
        """Whether certainly no value satisfies both, by a quick check."""
        try:
            return self._apart(one, other, 4)
        except PatternError:
            return False

    def _apart(self, one: Flat, other: Flat, depth: int) -> bool:
        for values, flat in ((one.values, other), (other.values, one)):
            if values is not None:
                return not any(self.flat_admits(flat, value) for value in values)
        common = one.types & other.types
        if not common - NUMBERS - {"object"} and (not common & NUMBERS or _far_apart(one, other)):
            return "object" not in common or self._distinguished(one, other, depth)
        return False

    def _distinguished(self, one: Flat, other: Flat, depth: int) -> bool:
        return depth > 0 and any(
            self._apart(self._with(Flat(), one.members(name)), self._with(Flat(), other.members(name)), depth - 1)
            for name in one.required | other.required
        )

    def _add(self, flat: Flat, node: Node, above: tuple[Node, ...]) -> None:
        if node in above:
            self._ledger.refuse(node, "$ref", "it refers to itself without end")
            return
        if node in flat.seen or node.schema is True:
            return
        flat.seen.add(node)
        keywords: dict[str, Json] = node.schema if is_object(node.schema) else {"not": {}}
        if self._document.draft <= 7 and "$ref" in keywords:
            keywords = {"$ref": keywords["$ref"]}
        for keyword, value in keywords.items():
            if keyword in _KEYWORDS and self._is_well_formed(node, keyword, value):
                try:
                    self._apply(flat, node, keyword, value, above)
                except PatternError as error:
                    self._ledger.refuse(node, keyword, str(error))
        self._add_members(flat, node, keywords)
        self._add_items(flat, node, keywords)

    def _is_well_formed(self, node: Node, keyword: str, value: Json) -> bool:
        if _is_well_formed(keyword, value):
            return True
        self._ledger.refuse(node, keyword, f"it cannot be {_shown(value)}")
        return False

    def _apply(  # noqa: C901 - one line for each keyword
        self, flat: Flat, node: Node, keyword: str, value: Json, above: tuple[Node, ...]
    ) -> None:
        match keyword:
            case "type":
                flat.types &= self._types(node, value)
            case "const":
                flat.keep([value])
            case "enum":
                flat.keep(value)
            case "pattern":
                flat.patterns += conjuncts(value)
            case "format":
                self._format(flat, value)
            case "required":
                flat.required |= dict.fromkeys(value)
            case "propertyNames":
                flat.names.append(self._document.child(node, keyword))
            case "uniqueItems":
                flat.unique = node if value else flat.unique
            case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):
                if value and (bound := node.schema.get(keyword[9:].lower())) is not None:
                    flat.limit(keyword, bound)
            case "multipleOf" | "minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum":
                flat.limit(keyword, value)
            case "maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum":
                flat.limit(keyword, value)
            case _:
                self._combine(flat, node, keyword, value, above)

    def _combine(  # noqa: C901 - one line for each keyword
        self, flat: Flat, node: Node, keyword: str, value: Json, above: tuple[Node, ...]
    ) -> None:
        match keyword:
            case "$ref":
                target = self.follow(node)
                if target is not None:
                    self._add(flat, target, (*above, node))
            case "allOf":
                for index in range(len(value)):
                    self._add(flat, self._document.child(node, keyword, index), (*above, node))
            case "anyOf" | "oneOf":
                options = tuple(self._document.child(node, keyword, index) for index in range(len(value)))
                flat.choices.append(Choice(options, node, is_exclusive=keyword == "oneOf"))
            case "not":
                self._not(flat, node, "not")
            case "if":
                self._if(flat, node)
            case "dependencies" | "dependentRequired" | "dependentSchemas":
                for name, demand in value.items():
                    wanted: Json = {"required": demand} if is_list(demand) else demand
                    ways: list[Json] = [{"properties": {name: False}}, {"allOf": [{"required": [name]}, wanted]}]
                    flat.choices.append(Choice(tuple(map(node.derived, ways)), node))
            case "$recursiveRef" if self._document.root.keywords.get("$recursiveAnchor") is None:
                self._add(flat, self._document.root, (*above, node))
            case "contains" if node.schema.get("minContains") == 0 and "maxContains" not in node.schema:
                pass
            case "contains" | "$dynamicRef" | "$recursiveRef":
                self._ledger.refuse(node, keyword, "it is not supported")
            case _:
                pass  # keywords of members and items: see `_add_members` and `_add_items`

    def _types(self, node: Node, value: Json) -> frozenset[str]:
        names = {value} if isinstance(value, str) else set(value)
        if "number" in names:
            names = names - {"number"} | NUMBERS
        if node.schema.get("nullable") is True and "$schema" not in self._document.root.keywords:
            names |= {"null"}
        unknown = names - set(ALL_TYPES)
        if unknown:
            self._ledger.refuse(node, "type", f"there is no type {_shown(min(unknown))}")
            return frozenset(ALL_TYPES)
        return frozenset(names)

    def _format(self, flat: Flat, value: str) -> None:
        if value in _PATTERNS:
            flat.patterns.append(_PATTERNS[value])
        elif value in _OF_ENGINE:
            flat.formats.append(value)

    def _not(self, flat: Flat, node: Node, keyword: str) -> None:
        negation = self._negator.negate(self._document.child(node, keyword) if node.schema else node.derived(True))
        if not negation.options and not negation.is_exact:
            self._ledger.refuse(node, keyword, "no schema says what breaks it")
            return
        flat.choices.append(Choice(tuple(map(node.derived, negation.options)), node))

    def _if(self, flat: Flat, node: Node) -> None:
        condition = self._document.child(node, "if")
        negation = self._negator.negate(condition)
        if not negation.options and not negation.is_exact:
            self._ledger.refuse(node, "if", "no schema says what breaks the condition")
            return
        holds = {"allOf": [condition.schema, node.schema.get("then", True)]}
        breaks = {"allOf": [{"anyOf": negation.options}, node.schema.get("else", True)]}
        flat.choices.append(Choice((node.derived(holds), node.derived(breaks)), node))

    def _add_members(self, flat: Flat, node: Node, keywords: dict[str, Json]) -> None:
        given = [key for key in _MEMBERS if key in keywords and _is_well_formed(key, keywords[key])]
        if not given:
            return
        named = {name: self._document.child(node, "properties", name) for name in self._keys(given, keywords, 0)}
        patterns = {name: self._document.child(node, _MEMBERS[1], name) for name in self._keys(given, keywords, 1)}
        flat.properties.append(Properties(named, patterns, self._rest(node, given, _MEMBERS[2:])))

    @staticmethod
    def _keys(given: Sequence[str], keywords: dict[str, Json], index: int) -> Iterable[str]:
        return keywords[_MEMBERS[index]] if _MEMBERS[index] in given else ()

    def _rest(self, node: Node, given: Sequence[str], keys: Sequence[str]) -> Node | None:
        """The schema for members or items that no other keyword of the same schema covers; None = any value."""
        rest, unevaluated = keys
        if rest in given:
            return self._document.child(node, rest)
        if unevaluated not in given or node.schema[unevaluated] is True:
            return None
        if node.schema.keys() & _APPLICATORS:
            self._ledger.refuse(node, unevaluated, "it stands beside schemas that may evaluate more")
            return None
        return self._document.child(node, unevaluated)

    def _add_items(self, flat: Flat, node: Node, keywords: dict[str, Json]) -> None:
        given = [key for key in _ITEMS if key in keywords and _is_well_formed(key, keywords[key])]
        items = keywords.get("items")
        is_list = isinstance(items, list)
        first_key, rest_key = ("items", "additionalItems") if is_list else ("prefixItems", "items")
        if not is_list and self._document.draft < 2020:
            given = [key for key in given if key != "prefixItems"]
        if "prefixItems" in given and isinstance(keywords["prefixItems"], dict):
            # `prefixItems` that is not a list is treated as `items`, as in llama-server.
            given.remove("prefixItems")
            flat.items.append(Items((), self._document.child(node, "prefixItems")))
        if not set(given) & {first_key, rest_key, "unevaluatedItems"}:
            return
        count = len(keywords[first_key]) if first_key in given else 0
        first = tuple(self._document.child(node, first_key, index) for index in range(count))
        flat.items.append(Items(first, self._rest(node, given, (rest_key, "unevaluatedItems"))))


_KEYWORDS: Final = frozenset(
    {*LEAST, *MOST, *_LISTS, *_MAPS, *_SCHEMAS, "type", "const", "format", "pattern", "multipleOf", "uniqueItems"}
    | {"$ref", "$dynamicRef", "$recursiveRef"}
)


def _far_apart(one: Flat, other: Flat) -> bool:
    both = Flat(limits=dict(one.limits))
    for keyword, value in other.limits.items():
        if keyword != "multipleOf":
            both.limit(keyword, value)
    return both.is_void("fraction")


def _is_well_formed(keyword: str, value: Json) -> bool:
    """Whether a value has the form that its keyword requires."""
    if keyword == "type":
        return isinstance(value, str) or _are(str, value)
    if keyword == "items" and isinstance(value, list):
        return _are((dict, bool), value)
    if keyword in _SCHEMAS:
        return isinstance(value, (dict, bool))
    if keyword == "prefixItems" and isinstance(value, dict):
        return True
    if keyword in _LISTS:
        return _are(str if keyword == "required" else object if keyword == "enum" else (dict, bool), value)
    if keyword in _MAPS:
        return isinstance(value, dict) and _are((dict, bool, list), value.values(), of=Iterable)
    if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
        return True
    if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if keyword in (*LEAST, *MOST):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == int(value)
    if keyword == "multipleOf":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    if keyword in ("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"):
        return isinstance(value, str)
    return keyword == "const" or isinstance(value, bool)


def _are(kind: type | tuple[type, ...], values: Json, *, of: type = list) -> bool:
    return isinstance(values, of) and all(isinstance(value, kind) for value in values)


def _shown(value: Json) -> str:
    text = identity(value)
    return text if len(text) <= 60 else text[:57] + "…"
