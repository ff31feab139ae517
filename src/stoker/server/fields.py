"""Decodes request bodies by tables that honor, refuse or ignore each field, and reads the `limit` of lists.

The tables are with each API's types.
"""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from stoker.errors import InvalidInput, UnsupportedParameter

_log = logging.getLogger(__name__)

_MAX_LOGGED = 1000
_MAX_NOTED = 32
_MAX_NAME = 100
_MAX_DIGITS = 9
"""Maximum number of digits of a `limit`."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]")
"""Characters of a field's name that can be listed in a response header."""
_MAX_EXACT = 2.0**53
"""Bound below which a float represents every whole number exactly."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Honoured:
    """Policy of a field that is implemented; it is a field of the request's wire type."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Policy of a field for a feature that does not exist here. A request that uses it fails; the error names it."""

    reason: str
    neutral: tuple[object, ...] = ()
    """Values that do not use the feature, so they are accepted. `null` always is. For an object with a `type`, only the
    `type` is compared."""

    def passes(self, value: object) -> bool:
        """Whether the value is accepted, because it does not use the refused feature."""
        return any(_equal(value, harmless) for harmless in self.neutral)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Policy of a known field that has no effect on the answer."""

    reason: str


FieldPolicy: TypeAlias = Honoured | Refused | Ignored
FieldTable: TypeAlias = Mapping[str, FieldPolicy]
NestedTables: TypeAlias = Mapping[str, FieldTable]
"""Tables for objects inside a body, by the name of the field that contains the object."""
_NOTHING_NESTED: NestedTables = {}


@dataclass(slots=True)
class IgnoredFields:
    """The fields of one request that have no effect, as paths; a header of the reply lists them."""

    is_strict: bool = False
    """Whether unknown fields are refused instead."""
    names: list[str] = field(default_factory=list[str])

    def note(self, name: str) -> None:
        if len(self.names) < _MAX_NOTED and _PLAIN.issuperset(name) and name not in self.names:
            self.names.append(name[:_MAX_NAME])


IGNORED = "ignored"
"""Key in a scope's state: the names of the fields of the request's body that have no effect."""
ignored_fields: ContextVar[IgnoredFields] = ContextVar("ignored_fields")
"""Ignored fields of the request that the current task or thread decodes."""


def honoured(wire_type: type[msgspec.Struct], *others: FieldTable) -> FieldTable:
    """The table of an endpoint: honors all fields of its wire type, and takes the policies of `others` for the rest."""
    rest = {name: policy for table in others for name, policy in table.items()}
    return {**rest, **dict.fromkeys(wire_type.__struct_encode_fields__, Honoured())}


def ignored(wire_type: type[msgspec.Struct], reason: str) -> FieldTable:
    """A table that ignores all fields of a type, for an endpoint that uses only some of another endpoint's fields."""
    return dict.fromkeys(wire_type.__struct_encode_fields__, Ignored(reason))


def decode_request(body: bytes, table: FieldTable, wire_type: type[T], nested: NestedTables = _NOTHING_NESTED) -> T:
    """Decodes a JSON body to its wire type by a table of policies. `null` means that a field was not given.

    Fields that are not in the table are ignored: they are noted in `ignored_fields`, and each is logged once. `nested`
    has the tables for objects inside the body.

    Raises:
        InvalidInput: the body is not a JSON object in UTF-8, a field has the wrong type, or the server is strict and a
            field is unknown.
        UnsupportedParameter: a refused field has a value that is not neutral.
    """
    values = decode_object(body)
    for name, inner in nested.items():
        if isinstance(value := values.get(name), dict):
            values[name] = _passing(cast("dict[str, Any]", value), inner, f"{name}.")
    return convert_fields(values, table, wire_type)


def convert_fields(values: Mapping[str, Any], table: FieldTable, wire_type: type[T], where: str = "") -> T:
    """Converts a decoded JSON object to a wire type by a table of policies.

    `where` is the path of an object inside the body, with a dot at its end, such as `options.`; empty = the body.

    Raises:
        InvalidInput: a field has the wrong type, or the server is strict and a field is unknown.
        UnsupportedParameter: a refused field has a value that is not neutral.
    """
    try:
        return msgspec.convert(_passing(values, table, where), wire_type)
    except msgspec.ValidationError as error:
        raise _wrong_type(error, where) from None


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body, with any byte order mark skipped.

    Raises:
        InvalidInput: the body is not a JSON object.
    """
    if not body.strip():
        raise InvalidInput("the request body is empty, but must be a JSON object")
    try:
        value = msgspec.json.decode(body.removeprefix(BOM_UTF8))  # some shells send a byte order mark
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput("the request body must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]  # JSON objects have string keys


def page_limit(query: Mapping[str, str], usual: int, most: int) -> int:
    """The query's `limit`: the number of items on a page of a list, `usual` unless it is given.

    Raises:
        InvalidInput: it is not a number from 1 to `most`.
    """
    limit = query.get("limit", str(usual))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= _MAX_DIGITS and 1 <= int(limit) <= most):
        raise InvalidInput(f"`limit` must be a number from 1 to {most}, not {limit[:40]!r}", parameter="limit")
    return int(limit)


def required(value: str | None, name: str) -> str:
    """The value of a required field.

    Raises:
        InvalidInput: the field is missing or empty.
    """
    if not value:
        raise InvalidInput(f"`{name}` is missing", parameter=name)
    return value


def _passing(values: Mapping[str, Any], table: FieldTable, where: str) -> dict[str, Any]:
    return {name: _whole(value) for name, value in values.items() if _passes(table, name, value, where)}


def _whole(value: object) -> object:
    """Converts a whole float to an int: in JSON 64 and 64.0 are the same number, and some clients send only floats."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT else value


def _passes(table: FieldTable, name: str, value: object, where: str) -> bool:
    if value is None:
        return False
    match table.get(name):
        case Honoured():
            return True
        case Refused() as refused:
            if not refused.passes(value):
                message = f"`{where}{name}` is not supported here: {refused.reason}"
                raise UnsupportedParameter(message, parameter=f"{where}{name}")
        case Ignored():
            note_ignored(f"{where}{name}")
        case None:
            _note_unknown(f"{where}{name}", table, where)
    return False


def note_ignored(name: str) -> None:
    """Adds the path of a part of the request that has no effect to the list in the reply's header."""
    _noted().note(name)


def _noted() -> IgnoredFields:
    return ignored_fields.get(IgnoredFields())


def _equal(value: object, harmless: object) -> bool:
    if isinstance(value, dict) and isinstance(harmless, dict):
        return _says(cast("dict[str, object]", value)) == _says(cast("dict[str, object]", harmless))
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _says(value: Mapping[str, object]) -> Mapping[str, object]:
    """The members of an object that are compared with neutral values: its `type` alone, else all that are not null."""
    given = {name: member for name, member in value.items() if member is not None}
    return {"type": given["type"]} if "type" in given else given


_logged_unknown: set[str] = set()


def _note_unknown(name: str, known: Iterable[str], where: str) -> None:
    """Notes and logs an unknown field; raises InvalidInput if the server is strict."""
    noted = _noted()
    if noted.is_strict:
        message = f"`{name[:_MAX_NAME]}` is not a field of this request{_hint(name, known, where)}"
        raise InvalidInput(message, parameter=name[:_MAX_NAME])
    noted.note(name)
    if name not in _logged_unknown and len(_logged_unknown) < _MAX_LOGGED:
        _logged_unknown.add(name)
        _log.warning("ignoring the unknown request field %r%s", name[:_MAX_NAME], _hint(name, known, where))


def _hint(name: str, known: Iterable[str], where: str) -> str:
    close = get_close_matches(name[:_MAX_NAME].removeprefix(where), known, n=1)
    return f"; did you mean `{where}{close[0]}`?" if close else ""


def _wrong_type(error: msgspec.ValidationError, where: str) -> InvalidInput:
    """Moves the path to the front. msgspec has it only in its text: "Expected `int`, got `str` - at `$.a[0].role`"."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if not path:
        return InvalidInput(text)
    path = f"{where}{path}"
    return InvalidInput(f"`{path}`: {text[:1].lower()}{text[1:]}", parameter=path)
