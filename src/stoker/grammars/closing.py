"""Closes the objects of a schema, so that they allow only named members. It only adds `additionalProperties`."""

from __future__ import annotations

from stoker.errors import GrammarTooComplex
from stoker.grammars.references import Json, is_list, is_object

_COMPOSING = frozenset({"allOf", "dependencies", "dependentSchemas", "if", "not", "unevaluatedProperties", "$id"})
_OTHER_PARTS = frozenset({"$ref", "anyOf", "oneOf"})
"""Keywords whose schemas apply to the same object as the schema that contains them."""


def closed(schema: Json) -> Json:
    """The schema, with `additionalProperties: false` on objects that do not specify other members.

    Models tend to invent members, which the clients do not accept; llama-server, Ollama and vLLM close objects, too. A
    schema in which several parts apply to one object is returned unchanged.

    Raises:
        GrammarTooComplex: the schema is nested too deeply.
    """
    try:
        return _closed(schema) if _is_plain(schema) else schema
    except RecursionError:
        raise GrammarTooComplex("the schema is nested too deeply") from None


def _is_plain(value: Json) -> bool:
    """Whether only one part of the schema applies to each object, by a conservative check of its keywords."""
    if is_list(value):
        return all(map(_is_plain, value))
    if not is_object(value):
        return True
    is_composed = "properties" in value and not _OTHER_PARTS.isdisjoint(value)
    return _COMPOSING.isdisjoint(value) and not is_composed and all(map(_is_plain, value.values()))


def _closed(schema: Json) -> Json:
    if not is_object(schema):
        return schema
    found = {**schema}
    if is_object(properties := schema.get("properties")):
        found["properties"] = {name: _closed(part) for name, part in properties.items()}
        if set(schema.get("required") or ()) <= properties.keys() and "patternProperties" not in schema:
            found.setdefault("additionalProperties", False)
    if is_object(items := schema.get("items")):
        found["items"] = _closed(items)
    for keyword in ("$defs", "definitions"):
        if is_object(definitions := schema.get(keyword)):
            found[keyword] = {name: _closed(part) for name, part in definitions.items()}
    for keyword in ("anyOf", "oneOf"):
        if is_list(options := schema.get(keyword)):
            found[keyword] = [_closed(option) for option in options]
    return found
