"""The combined requirements of several schemas on one value, by type of value. Resolves no references."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor, inf, lcm, nextafter
from typing import Final, NamedTuple

from stoker.grammars.patterns import PatternError, finds
from stoker.grammars.references import Json, Node, is_list, is_object

ALL_TYPES: Final = ("null", "boolean", "integer", "fraction", "string", "array", "object")
"""All types. A `fraction` is a number that is not an integer."""
NUMBERS: Final = frozenset({"integer", "fraction"})
LEAST: Final = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
MOST: Final = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")
_LARGEST = 2**63 - 1024
_EXACT = 2**53
"""Up to this value, every integer has an exact float."""


class Properties(NamedTuple):
    """The requirements of one schema on the members of an object: by name, by pattern of names, and for the rest."""

    named: Mapping[str, Node]
    patterns: Mapping[str, Node]
    rest: Node | None


class Items(NamedTuple):
    """The requirements of one schema on the items of an array: for the first ones, and for the rest."""

    first: tuple[Node, ...]
    rest: Node | None


class Choice(NamedTuple):
    """A requirement that at least one of several schemas holds, too."""

    options: tuple[Node, ...]
    origin: Node
    is_exclusive: bool = False
    """Exactly one of the schemas must hold (`oneOf`)."""


@dataclass
class Flat:
    """A conjunction of schemas, resolved to direct requirements without `$ref`, `allOf` and similar keywords."""

    types: frozenset[str] = frozenset(ALL_TYPES)
    values: list[Json] | None = None
    """The allowed values, from `enum` and `const`; None = not restricted."""
    limits: dict[str, Json] = field(default_factory=dict[str, Json])
    """Limits by keyword: those in `LEAST` and `MOST`, and `multipleOf`."""
    patterns: list[str] = field(default_factory=list[str])
    formats: list[str] = field(default_factory=list[str])
    properties: list[Properties] = field(default_factory=list[Properties])
    required: dict[str, None] = field(default_factory=dict[str, None])
    names: list[Node] = field(default_factory=list[Node])
    items: list[Items] = field(default_factory=list[Items])
    unique: Node | None = None
    """The schema that requires unique items; None = none."""
    choices: list[Choice] = field(default_factory=list[Choice])
    seen: set[Node] = field(default_factory=set[Node])
    """The schemas that were added to the conjunction."""

    def copy(self) -> Flat:
        other = Flat(**{name: copy(value) for name, value in vars(self).items() if name != "unique"})
        other.unique = self.unique
        return other

    def origin(self, keyword: str) -> Node | None:
        """The schema in the conjunction that has a keyword; None if none has it."""
        found = (node for node in self.seen if keyword in node.keywords)
        return min(found, key=lambda node: node.pointer, default=None)

    @property
    def is_free(self) -> bool:
        """Whether every value is allowed."""
        return self.types == frozenset(ALL_TYPES) and self.has_types_only

    @property
    def has_types_only(self) -> bool:
        """Whether every value of the allowed types is allowed."""
        demands = (self.limits, self.patterns, self.formats, self.properties, self.required, self.names, self.items)
        return self.values is None and not any(demands) and self.unique is None

    def limit(self, keyword: str, value: Json) -> None:
        """Adds a limit; of two limits for one keyword, the stricter one is kept."""
        value = whole(value)
        known = self.limits.get(keyword)
        if known is not None and keyword == "multipleOf":
            value = _common_multiple(known, value)
        elif known is not None:
            value = max(known, value) if keyword in LEAST else min(known, value)
        self.limits[keyword] = value

    def keep(self, values: Iterable[Json]) -> None:
        """Restricts the allowed values to these."""
        known = None if self.values is None else {identity(value) for value in self.values}
        found = {identity(value): value for value in values}
        self.values = [value for key, value in found.items() if known is None or key in known]

    def members(self, name: str) -> list[Node]:
        """The schemas that apply to the member of an object with this name.

        Raises:
            PatternError: a pattern of names cannot be compared with the name.
        """
        nodes: list[Node] = []
        for source in self.properties:
            hits = [node for pattern, node in source.patterns.items() if finds(pattern, name)]
            named = source.named.get(name)
            own = hits if named is None else [named, *hits]
            nodes += own or ([] if source.rest is None else [source.rest])
        return nodes

    def item(self, index: int) -> list[Node]:
        """The schemas that apply to the item of an array at this index."""
        nodes = [source.first[index] if index < len(source.first) else source.rest for source in self.items]
        return [node for node in nodes if node is not None]

    def admits_scalar(self, value: Json) -> bool:
        """Whether a scalar value has an allowed type and is within all limits. Formats are not checked.

        Raises:
            PatternError: a pattern cannot be compared with the value.
        """
        kind = type_of(value)
        if kind not in self.types:
            return False
        if kind in NUMBERS:
            return self._admits_number(value)
        if kind == "string":
            return self.spans("Length", len(value)) and all(finds(pattern, value) for pattern in self.patterns)
        return True

    def spans(self, what: str, size: int) -> bool:
        return self.limits.get(f"min{what}", 0) <= size <= self.limits.get(f"max{what}", inf)

    def _admits_number(self, value: float) -> bool:
        limits = self.limits
        if "multipleOf" in limits and Fraction(str(value)) % Fraction(str(limits["multipleOf"])):
            return False
        return limits.get("minimum", -inf) <= value <= limits.get("maximum", inf) and limits.get(
            "exclusiveMinimum", -inf
        ) < value < limits.get("exclusiveMaximum", inf)

    def is_void(self, kind: str) -> bool:
        """Whether no value of this kind, a string or a number, is within the limits."""
        limits = self.limits
        if kind == "string":
            return limits.get("minLength", 0) > limits.get("maxLength", inf)
        low = max(limits.get("minimum", -inf), limits.get("exclusiveMinimum", -inf))
        high = min(limits.get("maximum", inf), limits.get("exclusiveMaximum", inf))
        if kind == "integer" and low > -inf and high < inf:
            low, high = ceil(low), floor(high)
            return not any(self._admits_number(value) for value in (low, low + 1, high)) or low > high
        return low > high or (low == high and not self._admits_number(low))


def _common_multiple(a: float, b: float) -> float:
    """Raises:
    PatternError: the common multiple has too many digits.
    """
    first, second = Fraction(str(a)), Fraction(str(b))
    scale = lcm(first.denominator, second.denominator)
    common = Fraction(lcm(int(first * scale), int(second * scale)), scale)
    found = int(common) if common.denominator == 1 else float(common)
    if Fraction(str(found)) != common or common >= 2**31:
        raise PatternError("the common multiple has too many digits")
    return found


def type_of(value: Json) -> str:
    """The name of a value's type, as in `ALL_TYPES`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "integer" if value == int(value) else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def whole(value: Json) -> Json:
    """The value with all floats that have no fractional part replaced by integers, also in nested values."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if is_list(value):
        return [whole(item) for item in value]
    return {key: whole(item) for key, item in value.items()} if is_object(value) else value


def identity(value: Json) -> str:
    """A string that is equal exactly for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(whole(value), sort_keys=True)


def as_bound(keyword: str, value: float) -> float:
    """The limit rounded to the stricter side to a value that the engine stores exactly: a float in the 64-bit range."""
    if value <= -_LARGEST if keyword in LEAST else value >= _LARGEST:
        return -_LARGEST if keyword in LEAST else _LARGEST
    if isinstance(value, float) or abs(value) <= _EXACT or int(float(value)) == value:
        return value
    near = float(value)
    if keyword in LEAST:
        return int(near if near > value else nextafter(near, inf))
    return int(near if near < value else nextafter(near, -inf))


def can_spell(value: Json) -> bool:
    """Whether the engine can write exactly this value: no control characters, no integers that have no exact float."""
    match value:
        case str():
            return not any((char < " " and char not in "\b\t\n\f\r") or char == "\x7f" for char in value)
        case int() | float():
            return abs(value) < 1e300 and int(float(value)) == int(value)
        case _:
            parts = value if is_list(value) else value.values() if is_object(value) else ()
            return all(map(can_spell, parts))
