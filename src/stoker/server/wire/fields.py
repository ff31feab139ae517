"""What becomes of each field of a request body: honoured, refused or ignored. It knows no API's fields."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from stoker.errors import InvalidInput, UnsupportedParameter

_log = logging.getLogger(__name__)

_MAX_LOGGED = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Honoured:
    """The field does what its API says; it is a field of the request's wire type."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The field asks for something that is not done here, so the request fails and names it."""

    reason: str
    neutral: tuple[object, ...] = ()
    """Values that ask for nothing and pass. `null` always does."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """The field is known and has no effect on the answer."""

    reason: str


FieldPolicy: TypeAlias = Honoured | Refused | Ignored
FieldTable: TypeAlias = Mapping[str, FieldPolicy]


def decode_request(body: bytes, table: FieldTable, wire_type: type[T]) -> T:
    """Turns a JSON body into its wire type. `null` means that a field was not given.

    Fields that are not in the table are ignored, and each is logged once.

    Raises:
        InvalidInput: no JSON object, invalid UTF-8, or a field of the wrong type.
        UnsupportedParameter: a refused field asks for something.
    """
    honoured = {name: value for name, value in decode_object(body).items() if _passes(table, name, value)}
    try:
        return msgspec.convert(honoured, wire_type)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None


def decode_object(body: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InvalidInput: the body is something else.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput("the request body must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]  # JSON objects have string keys


def _passes(table: FieldTable, name: str, value: object) -> bool:
    if value is None:
        return False
    match table.get(name):
        case Honoured():
            return True
        case Refused(reason, neutral):
            if not any(_equal(value, harmless) for harmless in neutral):
                raise UnsupportedParameter(f"`{name}` is not supported here: {reason}", parameter=name)
        case Ignored():
            pass
        case None:
            _log_unknown(name)
    return False


def _equal(value: object, harmless: object) -> bool:
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


_logged_unknown: set[str] = set()


def _log_unknown(name: str) -> None:
    if name not in _logged_unknown and len(_logged_unknown) < _MAX_LOGGED:
        _logged_unknown.add(name)
        _log.debug("ignoring unknown request field %r", name[:100])


def _wrong_type(error: msgspec.ValidationError) -> InvalidInput:
    """msgspec tells the place only in its text: "Expected `int`, got `str` - at `$.messages[0].role`"."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if not path:
        return InvalidInput(text)
    return InvalidInput(f"`{path}`: {text[:1].lower()}{text[1:]}", parameter=path)
