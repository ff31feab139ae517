"""Removes definitions that no finite value satisfies from lowered schemas. Handles only the keywords in `schemas`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from stoker.grammars.references import Json

PREFIX = "#/$defs/"


def any_of(options: Iterable[Json]) -> Json:
    """A schema for values that satisfy one of several schemas."""
    found: list[Json] = []
    for option in options:
        if option is True:
            return True
        if option is not False:
            found += option["anyOf"] if option.keys() == {"anyOf"} else [option]
    if len(found) > 1:
        found = list({json.dumps(part): part for part in found}.values())
    return {"anyOf": found} if len(found) > 1 else found[0] if found else False


def productive(definitions: Mapping[str, Json]) -> dict[str, Json]:
    """The definitions that some finite value satisfies, without references to other definitions."""
    known: set[str] = set()
    while True:
        found = {name for name, schema in definitions.items() if name in known or _pruned(schema, known) is not False}
        if found == known:
            return {name: _pruned(definitions[name], known) for name in definitions if name in known}
        known = found


def _pruned(schema: Json, known: set[str]) -> Json:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema if schema["$ref"].removeprefix(PREFIX) in known else False
    if "anyOf" in schema:
        return any_of(_pruned(option, known) for option in schema["anyOf"])
    match schema.get("type"):
        case "object":
            return _pruned_object(schema, known)
        case "array":
            return _pruned_array(schema, known)
        case _:
            return schema


def _pruned_object(schema: dict[str, Json], known: set[str]) -> Json:
    found = dict(schema)
    for keyword in ("properties", "patternProperties"):
        if keyword in schema:
            found[keyword] = {name: _pruned(part, known) for name, part in schema[keyword].items()}
    found["additionalProperties"] = _pruned(schema.get("additionalProperties", True), known)
    if any(found["properties"][name] is False for name in schema.get("required", ())):
        return False
    return found


def _pruned_array(schema: dict[str, Json], known: set[str]) -> Json:
    found = dict(schema)
    first = [_pruned(part, known) for part in schema.get("prefixItems", ())]
    rest = _pruned(schema.get("items", True), known)
    end = first.index(False) if False in first else len(first) if rest is False else None
    if end is not None:
        found["maxItems"] = min(end, schema.get("maxItems", end))
        first, rest = first[: found["maxItems"]], False
        if found["maxItems"] < schema.get("minItems", 0):
            return False
    return found | {"prefixItems": first, "items": rest}
