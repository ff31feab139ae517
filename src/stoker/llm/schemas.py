"""Converts Python types to JSON schemas, and JSON to values of those types. Independent of models and messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from stoker.errors import InvalidInput

T = TypeVar("T")


def schema_of(kind: object, where: str) -> dict[str, Any]:
    """The JSON schema of a type: a dataclass, a TypedDict, a msgspec Struct, a pydantic model, or a built-in type.

    Objects allow only the keys that their class declares. `where` names the parameter in errors.

    Raises:
        InvalidInput: the type has no JSON schema.
    """
    if hasattr(kind, "__pydantic_core_schema__"):
        return _closed(_pydantic(kind).json_schema())
    try:
        return _closed(msgspec.json.schema(kind, schema_hook=_schema_of_part))
    except (TypeError, NotImplementedError, NameError) as error:
        raise InvalidInput(f"`{where}` has no JSON schema: {error}", parameter=where) from error


def parser_of(kind: object) -> Callable[[str], object]:
    """A function that parses JSON text to a value of this type, or raises an error of pydantic or msgspec."""
    if hasattr(kind, "__pydantic_core_schema__"):
        return _pydantic(kind).validate_json
    return msgspec.json.Decoder(cast("type[object]", kind), dec_hook=_part_of).decode


def converted(value: object, kind: type[T]) -> T:
    """Converts a plain JSON value to a value of this type.

    Raises:
        msgspec.ValidationError: the value does not fit the type.
    """
    return msgspec.convert(value, kind, dec_hook=_part_of)


def loaded_json(text: str) -> object:
    """Parses JSON text to plain values: dicts, lists, strings, numbers, booleans or None."""
    return json.loads(text)


def _pydantic(kind: object) -> Any:
    from pydantic import TypeAdapter  # optional: the type is a pydantic model, so the library is installed

    adapter: Any = TypeAdapter
    return adapter(kind)


def _schema_of_part(kind: Any) -> dict[str, Any]:
    if not hasattr(kind, "__pydantic_core_schema__"):
        raise NotImplementedError(f"values of type {kind.__name__} are not JSON")
    # An `$id` makes the `$ref`s of the embedded schema resolve against that schema.
    return {"$id": f"https://stoker.invalid/{kind.__name__}", **_pydantic(kind).json_schema()}


def _part_of(kind: Any, value: object) -> object:
    return _pydantic(kind).validate_python(value)


def _closed(schema: Any) -> Any:
    """The schema, with `additionalProperties: false` on objects that list properties and do not set it."""
    if isinstance(schema, list):
        return [_closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    parts = {key: _closed(value) for key, value in cast("Mapping[str, Any]", schema).items()}
    if parts.get("type") == "object" and isinstance(parts.get("properties"), dict):
        parts.setdefault("additionalProperties", False)
    return parts
