"""Reads protobuf messages field by field, without a schema and without copying, and spells single fields.

The encoding: <https://protobuf.dev/programming-guides/encoding/>.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


class ProtobufError(ValueError):
    """These bytes are no protobuf message."""


class Field(NamedTuple):
    """One field of a message, and where it stands in it."""

    number: int
    value: int | memoryview
    begin: int
    end: int

    @property
    def message(self) -> Message:
        """Its value, if that is a message."""
        return Message(_view(self.value))


def fields(data: memoryview) -> Iterator[Field]:
    """The fields of a message in their order.

    Raises:
        ProtobufError: one goes beyond the end, or is of no kind that protobuf knows.
    """
    at = 0
    while at < len(data):
        begin = at
        tag, at = _varint(data, at)
        value, at = _value(data, at, tag & 7)
        yield Field(tag >> 3, value, begin, at)


def spell(number: int, value: int | bytes | str) -> bytes:
    """A field as it stands in a message: a number that is not negative, bytes, or a text."""
    if isinstance(value, int):
        return _spell_varint(number << 3 | _VARINT) + _spell_varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _spell_varint(number << 3 | _BYTES) + _spell_varint(len(value)) + value


def edited(data: memoryview, number: int, edit: Callable[[memoryview], bytes]) -> bytes:
    """A message with some of its fields changed, and all others as they are."""

    def part(field: Field) -> bytes | memoryview:
        if field.number != number:
            return data[field.begin : field.end]
        return spell(number, edit(_view(field.value)))

    return b"".join(map(part, fields(data)))


def _spell_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


class Message:
    """One message; nested ones are read when they are asked for.

    Raises:
        ProtobufError: a field goes beyond the end, or is of no kind that protobuf knows. Also from the methods, for
            what they read.
    """

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = defaultdict(list)
        for field in fields(data):
            self._fields[field.number].append(field.value)

    def messages(self, number: int) -> Iterator[Message]:
        """The nested messages in a field, in their order."""
        for value in self._fields.get(number, ()):
            yield Message(_view(value))

    def text(self, number: int) -> str:
        """A field's string; empty if it is missing."""
        values = self._fields.get(number)
        return bytes(_view(values[-1])).decode("utf-8", "replace") if values else ""

    def texts(self, number: int) -> list[str]:
        """The strings in a field that is repeated."""
        return [bytes(_view(value)).decode("utf-8", "replace") for value in self._fields.get(number, ())]

    def integer(self, number: int) -> int:
        """A field's signed number; 0 if it is missing."""
        return next(reversed(self.integers(number)), 0)

    def integers(self, number: int) -> list[int]:
        """The signed numbers in a field that is repeated, packed or not."""
        found: list[int] = []
        for value in self._fields.get(number, ()):
            found += [value] if isinstance(value, int) else _packed(value)
        return [value - (1 << 64) if value >> 63 else value for value in found]


def _view(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ProtobufError("a number stands where bytes belong")
    return value


def _packed(data: memoryview) -> list[int]:
    found: list[int] = []
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _value(data: memoryview, at: int, kind: int) -> tuple[int | memoryview, int]:
    if kind == _VARINT:
        return _varint(data, at)
    if kind == _BYTES:
        size, at = _varint(data, at)
    elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
    else:
        raise ProtobufError(f"a field of the unknown kind {kind}")
    if at + size > len(data):
        raise ProtobufError(f"a field of {size} bytes goes beyond the end")
    return data[at : at + size], at + size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            raise ProtobufError("it ends in the middle of a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise ProtobufError("a number of more than 64 bits")
