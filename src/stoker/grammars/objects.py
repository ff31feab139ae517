"""Lowers the schemas of objects for the grammar engine: required and allowed members, and their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, Protocol

from stoker.errors import GrammarTooComplex
from stoker.grammars.flat import Flat
from stoker.grammars.patterns import PatternError, literal, rust_pattern
from stoker.grammars.references import MAX_PROPERTIES, Json, Node

MAX_COUNTED: Final = 256
"""Maximum number of combinations of members, if the number of members is limited."""


class Lowering(Protocol):
    """The interface of the lowering of schemas that objects need; see `schemas`."""

    def child(self, nodes: Iterable[Node]) -> Json: ...
    def admits(self, nodes: Iterable[Node], value: Json) -> bool: ...
    def flats(self, nodes: Iterable[Node]) -> list[Flat]: ...
    def refuse(self, keyword: str, reason: str, where: Flat | Node) -> None: ...


@dataclass(frozen=True)
class _Members:
    named: dict[str, Json]
    required: frozenset[str]
    patterns: dict[str, Json]
    rest: Json

    @property
    def is_possible(self) -> bool:
        return all(self.named[name] is not False for name in self.required)

    @property
    def optional(self) -> list[str]:
        return [name for name, schema in self.named.items() if schema is not False and name not in self.required]

    @property
    def is_closed(self) -> bool:
        return self.rest is False and all(schema is False for schema in self.patterns.values())

    def schema(self, **limits: int) -> Json:
        required = [name for name in self.named if name in self.required]
        found = {"type": "object", "properties": self.named, "required": required, "additionalProperties": self.rest}
        return found | ({"patternProperties": self.patterns} if self.patterns else {}) | limits

    def demanding(self, names: Iterable[str]) -> _Members:
        return replace(self, required=self.required | set(names))

    def without(self, names: Iterable[str]) -> _Members:
        return replace(self, named=self.named | dict.fromkeys(names, False))

    def closed(self) -> _Members:
        return replace(self, rest=False, patterns=dict.fromkeys(self.patterns, False))


def object_schemas(flat: Flat, lowering: Lowering) -> Iterator[Json]:
    """Yields alternative lowered schemas for the objects of a conjunction, each at least as strict as that."""
    try:
        members = _renamed(_members(flat, lowering), flat, lowering)
    except PatternError as error:
        lowering.refuse("patternProperties", str(error), flat)
        return
    if members.is_possible:
        yield from _counted(members, flat, lowering)


def _members(flat: Flat, lowering: Lowering) -> _Members:
    names = dict.fromkeys(name for source in flat.properties for name in source.named) | flat.required
    if len(names) > MAX_PROPERTIES:
        raise GrammarTooComplex(f"an object has over {MAX_PROPERTIES} properties")
    named = {name: lowering.child(flat.members(name)) for name in names}
    patterns = {name: lowering.child(_matching(flat, name)) for source in flat.properties for name in source.patterns}
    rest = lowering.child(source.rest for source in flat.properties if source.rest is not None)
    return _Members(
        named, frozenset(flat.required), {rust_pattern(name): part for name, part in patterns.items()}, rest
    )


def _matching(flat: Flat, pattern: str) -> list[Node]:
    """The schemas for members whose names match this pattern only: the engine refuses patterns that overlap."""
    nodes = [source.patterns.get(pattern, source.rest) for source in flat.properties]
    return [node for node in nodes if node is not None]


def _renamed(members: _Members, flat: Flat, lowering: Lowering) -> _Members:
    """The members restricted to names that satisfy `propertyNames`."""
    if not flat.names:
        return members
    banned = [name for name in members.named if not lowering.admits(flat.names, name)]
    members = members.without(banned)
    if members.is_closed:
        return members
    ways = [way for way in lowering.flats(flat.names) if "string" in way.types]
    if any(way.has_types_only for way in ways):
        return members
    if members.patterns or any(way.formats for way in ways):
        lowering.refuse("propertyNames", "it stands beside patterns, or has a format", flat.names[0])
        return members
    values = [way.values for way in ways if way.values is not None]
    if len(values) == len(ways):
        names = [name for each in values for name in each if isinstance(name, str) and name not in members.named]
        return _listed(members, [name for name in names if lowering.admits(flat.names, name)])
    pattern = _name_pattern(ways)
    if pattern is None:
        lowering.refuse("propertyNames", "its demands cannot be said by one pattern", flat.names[0])
        return members
    return replace(members, patterns={pattern: members.rest}, rest=False)


def _listed(members: _Members, names: list[str]) -> _Members:
    return replace(members, named=members.named | dict.fromkeys(names, members.rest), rest=False)


def _name_pattern(ways: list[Flat]) -> str | None:
    patterns: list[str] = []
    for way in ways:
        sizes = {key: way.limits[key] for key in ("minLength", "maxLength") if key in way.limits}
        if way.values is not None:
            patterns.append(f"^(?:{'|'.join(literal(name) for name in way.values if isinstance(name, str))})$")
        elif len(way.patterns) + bool(sizes) == 1:
            size = rf"^[\s\S]{{{sizes.get('minLength', 0)},{sizes.get('maxLength', '')}}}$"
            patterns.append(rust_pattern(way.patterns[0]) if way.patterns else size)
        else:
            return None
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _counted(members: _Members, flat: Flat, lowering: Lowering) -> Iterator[Json]:
    """Yields schemas for the allowed numbers of members. Unnamed members cannot be counted: a key may be repeated."""
    low = max(0, flat.limits.get("minProperties", 0) - len(members.required))
    most = flat.limits.get("maxProperties")
    high = None if most is None else most - len(members.required)
    optional = members.optional
    if high is not None and members.is_closed and high >= len(optional):
        high = None
    if high is not None and high < 0:
        return
    if high is None and low == 0:
        yield members.schema()
        return
    count = 0
    for way in _ways(members, optional, low, high):
        count += 1
        if count > MAX_COUNTED:
            keyword = "maxProperties" if high is not None else "minProperties"
            lowering.refuse(keyword, "there are too many combinations", flat)
            return
        yield way
    if not count and not members.is_closed:
        lowering.refuse("minProperties", "unnamed members cannot be counted, since a key may be repeated", flat)


def _ways(members: _Members, optional: list[str], low: int, high: int | None) -> Iterator[Json]:
    if high is None:
        for names in combinations(optional, low):
            yield members.demanding(names).schema()
        if low == 1 and not members.is_closed:
            yield members.without(optional).schema(minProperties=len(members.required) + 1)
        return
    for size in range(min(high, len(optional)) + 1):
        for names in combinations(optional, size):
            chosen = members.demanding(names).without(name for name in optional if name not in names)
            if size >= low:
                yield chosen.schema(maxProperties=high + len(members.required))
            elif size == low - 1 and not members.is_closed:
                total = len(chosen.required)
                yield chosen.schema(minProperties=total + 1, maxProperties=high + len(members.required))
