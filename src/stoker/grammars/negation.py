"""Negates schemas: computes schemas for the values that another schema forbids, as far as schemas can express it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

from stoker.grammars.flat import ALL_TYPES, NUMBERS, type_of
from stoker.grammars.patterns import other_than
from stoker.grammars.references import Json, Node

_OPPOSITE: Final[dict[str, tuple[list[str], str, int]]] = {
    "minimum": ([*NUMBERS], "exclusiveMaximum", 0),
    "maximum": ([*NUMBERS], "exclusiveMinimum", 0),
    "exclusiveMinimum": ([*NUMBERS], "maximum", 0),
    "exclusiveMaximum": ([*NUMBERS], "minimum", 0),
    "minLength": (["string"], "maxLength", -1),
    "maxLength": (["string"], "minLength", 1),
    "minItems": (["array"], "maxItems", -1),
    "maxItems": (["array"], "minItems", 1),
    "minProperties": (["object"], "maxProperties", -1),
    "maxProperties": (["object"], "minProperties", 1),
}
_UNSAYABLE: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "format",
        "items",
        "multipleOf",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "$dynamicRef",
        "$recursiveRef",
        "then",
        "else",
    }
)


class Negation(NamedTuple):
    """The negation of a schema: a value violates the schema if one of the options holds for it."""

    options: list[Json]
    is_exact: bool
    """A value violates the schema only if one of the options holds."""


class Negator:
    """Args:
    follow: returns the target of a `$ref`; None if there is none.
    is_well_formed: returns whether a keyword may have a value.
    """

    def __init__(self, follow: Callable[[Node], Node | None], is_well_formed: Callable[[str, Json], bool]) -> None:
        self._follow = follow
        self._is_well_formed = is_well_formed

    def negate(self, node: Node, above: tuple[Node, ...] = ()) -> Negation:
        """The negation of a schema.

        Args:
            node: the schema.
            above: schemas whose negation is in progress and that refer to this one.
        """
        if isinstance(node.schema, bool):
            return Negation([] if node.schema else [True], is_exact=True)
        if isinstance(node.schema.get("$id"), str):
            return Negation([], is_exact=False)  # references inside would be resolved against another base URI
        options: list[Json] = []
        is_exact = node not in above
        for keyword, value in node.schema.items() if is_exact else ():
            known = self._is_well_formed(keyword, value)
            found = self._keyword(node, keyword, value, (*above, node)) if known else Negation([], is_exact=False)
            options += found.options
            is_exact &= found.is_exact
        return Negation(options, is_exact)

    def _keyword(self, node: Node, keyword: str, value: Json, above: tuple[Node, ...]) -> Negation:
        if keyword in _OPPOSITE and not isinstance(value, bool):
            types, opposite, step = _OPPOSITE[keyword]
            return Negation([{"type": types, opposite: value + step}] if value + step >= 0 or not step else [], True)
        if keyword in _UNSAYABLE or keyword in _OPPOSITE:
            return Negation([], is_exact=False)
        if keyword == "type" and node.keywords.get("nullable") is True:
            named = [value] if isinstance(value, str) else cast("list[Any]", value)
            return _not_types([*named, "null"])
        if keyword == "const":
            return _not_values([value])
        simple = {
            "type": _not_types,
            "enum": _not_values,
            "required": _not_required,
        }
        if keyword in simple:
            return simple[keyword](value)
        parts = {"not": self._not, "allOf": self._all_of, "anyOf": self._any_of, "properties": self._properties}
        if keyword in parts:
            return parts[keyword](node, value, above)
        if keyword == "$ref":
            target = self._follow(node)
            if target is None or target.base != node.base:
                return Negation([], is_exact=False)
            return self.negate(target, above)
        return Negation([], is_exact=keyword != "if")

    def _not(self, node: Node, value: Json, above: tuple[Node, ...]) -> Negation:
        return Negation([value], is_exact=True)

    def _all_of(self, node: Node, value: Json, above: tuple[Node, ...]) -> Negation:
        found = [self.negate(node.derived(part), above) for part in value]
        return Negation([option for each in found for option in each.options], all(each.is_exact for each in found))

    def _any_of(self, node: Node, value: Json, above: tuple[Node, ...]) -> Negation:
        found = [self.negate(node.derived(part), above) for part in value]
        together = {"allOf": [{"anyOf": each.options} for each in found]}
        return Negation([together] if all(each.options for each in found) else [], all(each.is_exact for each in found))

    def _properties(self, node: Node, value: Json, above: tuple[Node, ...]) -> Negation:
        found = {name: self.negate(node.derived(part), above) for name, part in value.items()}
        options = [
            {"type": ["object"], "required": [name], "properties": {name: {"anyOf": each.options}}}
            for name, each in found.items()
            if each.options
        ]
        return Negation(options, all(each.is_exact for each in found.values()))


def _not_types(value: Json) -> Negation:
    named = {value} if isinstance(value, str) else set(value)
    named |= NUMBERS if "number" in named else set[str]()
    rest = [name for name in ALL_TYPES if name not in named]
    return Negation([{"type": rest}] if rest else [], is_exact=True)


def _not_required(value: Json) -> Negation:
    return Negation([{"type": ["object"], "properties": {name: False}} for name in value], is_exact=True)


def _not_values(values: Json) -> Negation:
    types = {type_of(value) for value in values}
    rest = [name for name in ALL_TYPES if name not in types and not (NUMBERS & types and name in NUMBERS)]
    options: list[Json] = [{"type": rest}] if rest else []
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        options.append({"type": ["string"], "pattern": other_than(texts)})
    if "boolean" in types:
        options += [{"const": value} for value in (True, False) if not any(each is value for each in values)]
    if NUMBERS & types:
        options += _between(sorted({value for value in values if type_of(value) in NUMBERS}))
    return Negation(options, is_exact=not types & {"array", "object"})


def _between(numbers: list[float]) -> Iterator[Json]:
    """The ranges below, between and above some numbers."""
    yield {"type": [*NUMBERS], "exclusiveMaximum": numbers[0]}
    for low, high in pairwise(numbers):
        yield {"type": [*NUMBERS], "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield {"type": [*NUMBERS], "exclusiveMinimum": numbers[-1]}
