"""Python types as JSON schemas, and JSON as values of these types; it knows no model and no message."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from stoker.errors import InvalidInput

T = TypeVar("T")


def schema_of(kind: object, where: str) -> dict[str, Any]:
    """The JSON schema of a type: a dataclass, a TypedDict, a msgspec Struct, a class of pydantic, or a plain type.

    Objects take no other keys than those that their class names.

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
    """Reads JSON as a value of this type. What does not fit raises an error of pydantic or msgspec."""
    if hasattr(kind, "__pydantic_core_schema__"):
        return _pydantic(kind).validate_json
    return msgspec.json.Decoder(cast("type[object]", kind), dec_hook=_part_of).decode


def converted(value: object, kind: type[T]) -> T:
    """Plain JSON values as a value of this type.

    Raises:
        msgspec.ValidationError: it does not fit.
    """
    return msgspec.convert(value, kind, dec_hook=_part_of)


def loaded_json(text: str) -> object:
    """The plain value of a JSON text."""
    return json.loads(text)


def _pydantic(kind: object) -> Any:
    from pydantic import TypeAdapter  # only types of pydantic come here

    adapter: Any = TypeAdapter
    return adapter(kind)


def _schema_of_part(kind: Any) -> dict[str, Any]:
    if not hasattr(kind, "__pydantic_core_schema__"):
        raise NotImplementedError(f"values of type {kind.__name__} are not JSON")
    # Its references begin at itself.
    return {"$id": f"https://stoker.invalid/{kind.__name__}", **_pydantic(kind).json_schema()}


def _part_of(kind: Any, value: object) -> object:
    return _pydantic(kind).validate_python(value)


def _closed(schema: Any) -> Any:
    """The same schema; objects with named properties have no others."""
    if isinstance(schema, list):
        return [_closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    parts = {key: _closed(value) for key, value in cast("Mapping[str, Any]", schema).items()}
    if parts.get("type") == "object" and isinstance(parts.get("properties"), dict):
        parts.setdefault("additionalProperties", False)
    return parts
