"""The syntaxes in which models write tool calls: five shapes, each a frozen description that parses calls.

Every field of a shape that is a marker can be replaced by the code points of control tokens (`with_marks`).

    JSONCalls     <tool_call>{"name": "f", "arguments": {"k": 1}}</tool_call>
    NamedCalls    [TOOL_CALLS]f[ARGS]{"k": 1}
    TaggedCalls   <function=f><parameter=k>1</parameter></function>
    PythonCalls   [f(k=1)]
    BareCalls     call:f{k:1}
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, TypeAlias, TypeVar, cast

from stoker.text.chat_formats.calls import (
    MAX_NAME_CHARS,
    NAME_CHAR,
    Calls,
    JSONText,
    NotACall,
    attribute_type,
    encode_text,
    json_of,
    opens_wrapper,
    read_arguments,
    read_key,
    read_value,
    skip,
    text_of,
)
from stoker.text.chat_formats.literals import BARE, PYTHON, Literals, read_literal
from stoker.text.chat_formats.scanner import Emit, Markers, Scanner, Waits

ShapeT = TypeVar("ShapeT", bound="AnyShape")


def _plain(default: str) -> str:
    """A field that is not a marker, so `with_marks` leaves it unchanged."""
    return field(default=default, metadata={"marker": False})


class Shape(Protocol):
    """A syntax of tool calls."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that begin a call. An empty string means that a call without a marker may be the whole answer."""
        ...

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """Parses the calls after the marker `start`.

        Raises:
            NotACall: the text is not a call. Raised only before a call has begun.
        """
        ...


def with_marks(shape: ShapeT, encode: Callable[[str], str]) -> ShapeT:
    """The shape with `encode` applied to its markers, which replaces control tokens by their code points."""
    changed: dict[str, object] = {}
    for each in fields(shape):
        value: object = getattr(shape, each.name)
        if isinstance(value, str) and each.metadata.get("marker", True):
            changed[each.name] = encode(value)
        elif isinstance(value, tuple):
            changed[each.name] = tuple(encode(marker) for marker in cast("tuple[str, ...]", value))
    return replace(shape, **changed)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True, kw_only=True)
class JSONCalls:
    """Objects with name and arguments, one after another or in an array, between two markers."""

    start: str = ""
    end: str = ""
    others: tuple[str, ...] = ()
    """Further markers that may begin a call."""
    name_key: str = _plain("name")
    arguments_key: str = _plain("arguments")
    name_is_key: bool = False
    """The object is `{name: arguments}`, without `name_key` and `arguments_key`."""
    wrapper: str = _plain("")
    """Key of an enclosing object whose value is the calls; empty = no enclosing object."""
    id_key: str = _plain("")
    """Key of the call's id, which models write after the arguments, or before the name if it is a number."""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start, *self.others)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        if self.wrapper and not (yield from opens_wrapper(scanner, self.wrapper)):
            raise NotACall
        num_read = 0
        while True:
            yield from scanner.spaces()
            char = yield from scanner.peek()
            if char and char in "[,":
                yield from scanner.take()
            elif char == "{" and (start or self.wrapper or num_read == 0):
                scanner.record() if num_read else None
                yield from self._object(scanner, calls)
                num_read += 1
            else:
                break
        if not num_read:
            raise NotACall
        if (yield from scanner.takes("]")):
            yield from scanner.spaces()
        if self.wrapper:
            yield from scanner.takes("}")
        if self.end:
            yield from scanner.takes(self.end)

    def _object(self, scanner: Scanner, calls: Calls) -> Waits[None]:
        yield from scanner.take()
        name, early = "", ""
        has_begun = is_complete = False
        while key := (yield from read_key(scanner)):
            if self.name_is_key and not has_begun:
                calls.begin(key)
                has_begun = True
                is_complete = yield from read_arguments(scanner, calls.arguments)
            elif key == self.name_key:
                name = text_of((yield from read_value(scanner)))
                if not early:
                    continue
                calls.begin(name)
                calls.arguments(early)
                has_begun = is_complete = True
            elif key == self.arguments_key and name and not has_begun:
                calls.begin(name)
                has_begun = True
                is_complete = yield from read_arguments(scanner, calls.arguments)
            elif key == self.arguments_key:
                early = yield from read_value(scanner)
            else:
                yield from read_value(scanner)
        yield from scanner.spaces()
        is_closed = yield from scanner.takes("}")
        if not has_begun and is_closed:
            calls.begin(name)
            calls.arguments("{}")
            is_complete = True
        if not has_begun and not is_closed:
            raise NotACall
        if is_complete:
            calls.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls:
    """The name, then the arguments as a JSON object."""

    start: str
    others: tuple[str, ...] = ()
    """Further markers that may begin a call."""
    section: tuple[str, str] = ("", "")
    """Markers around all calls."""
    before_name: str = ""
    """Marker before the name. Text between `start` and this marker is not part of the name."""
    before_arguments: str = ""
    """Marker between the name and the arguments; empty = the arguments follow immediately."""
    fence: tuple[str, str] = ("", "")
    """Markers around the arguments."""
    end: str = ""
    name_pattern: str = _plain(r"\s*([\w.-]+)")
    """Regular expression for the text before the arguments; its first group is the name."""
    writes_before: str = _plain("")
    """Text that a model writes before the name or `before_name`; `{number}` and `{id}` are placeholders."""
    writes_after: tuple[str, ...] = ("",)
    """Alternatives of the text between the name and `before_arguments`, with the placeholders of `writes_before`."""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start, *self.others)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        if self.before_name:
            _, found = yield from scanner.text_until(Markers([self.before_name]), MAX_NAME_CHARS)
            if found is None:
                raise NotACall
        calls.begin((yield from self._name(scanner)))
        yield from scanner.spaces()
        if self.fence[0]:
            yield from scanner.takes(self.fence[0])
            yield from scanner.spaces()
        is_complete = yield from read_arguments(scanner, calls.arguments)
        if is_complete:
            calls.end()
        yield from skip(scanner, (self.fence[1], self.end))

    def _name(self, scanner: Scanner) -> Waits[str]:
        if self.before_arguments:
            header, found = yield from scanner.text_until(Markers([self.before_arguments]), MAX_NAME_CHARS)
        else:
            header, found = (yield from scanner.match(NAME_CHAR)), "{"
        match = re.match(self.name_pattern, header)
        if found is None or match is None:
            raise NotACall
        return match[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """The name and each argument between markers. Strings are raw text; other values are JSON or Python literals."""

    start: str
    others: tuple[str, ...] = ()
    """Further markers that may begin a call."""
    section: tuple[str, str] = ("", "")
    """Markers around all calls, or around each call."""
    name_end: str = ""
    """Marker after the name; empty = the name ends where `key_start` or `end` begins."""
    head_end: str = ""
    """Marker after the attributes of the call, which follow the name; empty = no attributes."""
    writes_head: str = _plain("")
    """Attributes of the call as a model writes them; `{number}` is a placeholder."""
    key_start: str
    key_end: str
    attributes_end: str = ""
    """Marker after the attributes of an argument, which follow the key; empty = no attributes."""
    writes_attributes: tuple[str, ...] = ("", "")
    """Attributes of an argument as a model writes them: first for a string, then alternatives for other values."""
    value_start: str = ""
    value_end: str
    quotes: tuple[str, str] = ("", "")
    """Optional markers around a string."""
    end: str
    trims_newline: bool = False
    """One line break after the marker before a value, and one before `value_end`, are not part of the value."""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start, *self.others)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        ends = [self.name_end] if self.name_end else [self.key_start, self.end]
        name, found = yield from scanner.text_until(Markers(ends), MAX_NAME_CHARS)
        if found is None:
            raise NotACall
        calls.begin(name.strip())
        if self.head_end:
            yield from scanner.text_until(Markers([self.head_end]), MAX_NAME_CHARS)
        if found == self.end:
            calls.arguments("{}")
            is_complete = True
        else:
            is_complete = yield from self._arguments(scanner, calls, is_key=found == self.key_start)
        if is_complete:
            calls.end()

    def _arguments(self, scanner: Scanner, calls: Calls, *, is_key: bool) -> Waits[bool]:
        separator = "{"
        while True:
            yield from scanner.spaces()
            if not is_key and not (yield from scanner.takes(self.key_start)):
                break
            is_key = False
            key, found = yield from scanner.text_until(Markers([self.key_end]), MAX_NAME_CHARS)
            if found is None:
                return False
            attributes = ""
            if self.attributes_end:
                attributes, found = yield from scanner.text_until(Markers([self.attributes_end]), MAX_NAME_CHARS)
            if self.value_start:
                yield from scanner.spaces()
                yield from scanner.takes(self.value_start)
            calls.arguments(f"{separator}{encode_text(key.strip())}: ")
            separator = ", "
            is_text = attribute_type(attributes)
            if not (
                yield from self._value(scanner, calls, calls.takes_text(key.strip()) if is_text is None else is_text)
            ):
                return False
        is_closed = yield from scanner.takes(self.end)
        if is_closed:
            calls.arguments("}" if separator == ", " else "{}")
        return is_closed

    def _value(self, scanner: Scanner, calls: Calls, is_text: bool | None) -> Waits[bool]:
        if self.trims_newline:
            yield from scanner.takes("\n")
        value_end = self.value_end
        if self.quotes[0] and (yield from scanner.takes(self.quotes[0])):
            is_text, value_end = True, self.quotes[1]
        raw: list[str] = []
        text = JSONText(calls.arguments, trims_newline=self.trims_newline)
        found = yield from scanner.until(Markers([value_end]), text.push if is_text else raw.append)
        if found is None:
            return False
        if is_text:
            text.close()
        else:
            calls.arguments(json_of("".join(raw)))
        if value_end != self.value_end:
            yield from scanner.takes(self.value_end)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCalls:
    """A list of Python calls with keyword arguments."""

    start: str = ""
    end: str = ""
    others: tuple[str, ...] = ()
    """Further markers that may begin a call."""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start, *self.others)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        yield from scanner.spaces()
        is_list = yield from scanner.takes("[")
        if not is_list and not start:
            raise NotACall
        num_read = 0
        while True:
            yield from scanner.spaces()
            name = yield from scanner.match(NAME_CHAR)
            if not name or not (yield from scanner.takes("(")):
                break
            calls.begin(name)
            num_read += 1
            if (yield from _members(scanner, calls.arguments, PYTHON, "=", ")")):
                calls.end()
            yield from scanner.spaces()
            if not (yield from scanner.takes(",")):
                break
            scanner.record()
        if not num_read:
            raise NotACall
        yield from skip(scanner, ("]" if is_list else "", self.end))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareCalls:
    """An object whose keys and words have no quotes; strings are enclosed in the marker `quote`."""

    start: str
    quote: str
    end: str

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start,)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        calls.begin((yield from scanner.match(NAME_CHAR)))
        yield from scanner.spaces()
        if not (yield from scanner.takes("{")):
            return
        if (yield from _members(scanner, calls.arguments, replace(BARE, quotes=(self.quote,)), ":", "}")):
            calls.end()
        yield from skip(scanner, (self.end,))


AnyShape: TypeAlias = JSONCalls | NamedCalls | TaggedCalls | PythonCalls | BareCalls


def _members(scanner: Scanner, emit: Emit, literals: Literals, after_key: str, end: str) -> Waits[bool]:
    """Emits `k=1, …)` as a JSON object. Returns whether the object is complete."""
    opening = "{"
    while True:
        yield from scanner.spaces()
        if (yield from scanner.takes(end)):
            emit("{}" if opening == "{" else "}")
            return True
        key, found = yield from scanner.text_until(Markers([after_key]), MAX_NAME_CHARS)
        if found is None:
            return False
        emit(f"{opening}{encode_text(key.strip())}: ")
        opening = ", "
        if not (yield from read_literal(scanner, emit, literals)):
            return False
        yield from scanner.spaces()
        yield from scanner.takes(",")
