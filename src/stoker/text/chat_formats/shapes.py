"""How models write tool calls: five shapes, each a frozen description that reads calls as events.

Every field of a shape that is a marker may be replaced by the code points of control tokens (`with_marks`).

    JSONCalls     <tool_call>{"name": "f", "arguments": {"k": 1}}</tool_call>
    NamedCalls    [TOOL_CALLS]f[ARGS]{"k": 1}
    TaggedCalls   <function=f><parameter=k>1</parameter></function>
    PythonCalls   [f(k=1)]
    BareCalls     call:f{k:1}
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, TypeAlias, TypeVar, cast

from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Event
from stoker.text.chat_formats.literals import BARE, PYTHON, Literals, read_literal
from stoker.text.chat_formats.scanner import Emit, Markers, Scanner, Waits
from stoker.text.messages import Json

MAX_NAME_CHARS = 256
_NAME = re.compile(r"[\w.:/-]+")
_NAME_CHAR = re.compile(r"[\w.-]")
_MAX_LITERAL_CHARS = 1 << 16
"""Longer text is not tried as a Python literal."""

ShapeT = TypeVar("ShapeT", bound="AnyShape")


def _plain(default: str) -> str:
    """A field that is no marker."""
    return field(default=default, metadata={"marker": False})


class NotACall(Exception):
    """What looked like a tool call is none: it is content."""


class Calls:
    """Takes the calls of an answer.

    Args:
        emit: takes the events.
        tools: the JSON schema of each offered tool's parameters, by the tool's name; None = any name is a tool's.
        on_begin: told that a call has begun, so that what was read of it is no content any more.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        tools: Mapping[str, Mapping[str, Json]] | None,
        on_begin: Callable[[], None],
    ) -> None:
        self._emit = emit
        self._tools = tools
        self._on_begin = on_begin
        self.name = ""

    def begin(self, name: str) -> None:
        """Begins a call.

        Raises:
            NotACall: no tool has this name.
        """
        if not _NAME.fullmatch(name) or (self._tools is not None and name not in self._tools):
            raise NotACall
        self.name = name
        self._on_begin()
        self._emit(CallBegin(name))

    def arguments(self, text: str) -> None:
        self._emit(CallArguments(text))

    def end(self) -> None:
        self._emit(CallEnd())

    def takes_text(self, parameter: str) -> bool | None:
        """Whether the schema says that a parameter is a string; None = it does not say."""
        schema = (self._tools or {}).get(self.name, {})
        properties = schema.get("properties")
        return _takes_text(properties.get(parameter)) if isinstance(properties, dict) else None


class Shape(Protocol):
    """A way to write tool calls."""

    @property
    def starts(self) -> tuple[str, ...]:
        """Markers that begin a call; an empty one: a call is the whole answer, without a marker."""
        ...

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """Reads the calls after the marker `start`.

        Raises:
            NotACall: before any call has begun.
        """
        ...


def with_marks(shape: ShapeT, encode: Callable[[str], str]) -> ShapeT:
    """The same shape with its markers spelled in code points of control tokens."""
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
    """The object is `{name: arguments}`."""
    wrapper: str = _plain("")
    """The calls are the value of this key."""

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start, *self.others)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        if self.wrapper and not (yield from _opens_wrapper(scanner, self.wrapper)):
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
        while key := (yield from _key(scanner)):
            if self.name_is_key and not has_begun:
                calls.begin(key)
                has_begun = True
                is_complete = yield from _arguments(scanner, calls.arguments)
            elif key == self.name_key:
                name = _text((yield from _value(scanner)))
                if not early:
                    continue
                calls.begin(name)
                calls.arguments(early)
                has_begun = is_complete = True
            elif key == self.arguments_key and name and not has_begun:
                calls.begin(name)
                has_begun = True
                is_complete = yield from _arguments(scanner, calls.arguments)
            elif key == self.arguments_key:
                early = yield from _value(scanner)
            else:
                yield from _value(scanner)
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
    """What stands between the marker and this one is no part of the name."""
    before_arguments: str = ""
    """After the name. Empty = the arguments follow at once."""
    fence: tuple[str, str] = ("", "")
    """Around the arguments."""
    end: str = ""
    name_pattern: str = _plain(r"\s*([\w.-]+)")
    """What of the text before the arguments is the name: the first group."""

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
        is_complete = yield from _arguments(scanner, calls.arguments)
        if is_complete:
            calls.end()
        yield from _skip(scanner, (self.fence[1], self.end))

    def _name(self, scanner: Scanner) -> Waits[str]:
        if self.before_arguments:
            header, found = yield from scanner.text_until(Markers([self.before_arguments]), MAX_NAME_CHARS)
        else:
            header, found = (yield from scanner.match(_NAME_CHAR)), "{"
        match = re.match(self.name_pattern, header)
        if found is None or match is None:
            raise NotACall
        return match[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """The name and each argument between markers. Text is raw; other values are JSON, or Python's literals."""

    start: str
    others: tuple[str, ...] = ()
    """Further markers that may begin a call."""
    section: tuple[str, str] = ("", "")
    """Markers around all calls, or around each."""
    name_end: str = ""
    """Empty = the name ends where the first argument or the end begins."""
    head_end: str = ""
    """Attributes of the call, up to this marker, stand after the name."""
    key_start: str
    key_end: str
    attributes_end: str = ""
    """Attributes of the argument, up to this marker, stand after the key."""
    value_start: str = ""
    value_end: str
    quotes: tuple[str, str] = ("", "")
    """May stand around text."""
    end: str
    trims_newline: bool = False
    """One line break after and before the markers of a value is no part of the value."""

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
            calls.arguments(f"{separator}{_encode(key.strip())}: ")
            separator = ", "
            is_text = _attribute_type(attributes)
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
        text = _JSONText(calls.arguments, trims_newline=self.trims_newline)
        found = yield from scanner.until(Markers([value_end]), text.push if is_text else raw.append)
        if found is None:
            return False
        if is_text:
            text.close()
        else:
            calls.arguments(_json_of("".join(raw)))
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
            name = yield from scanner.match(_NAME_CHAR)
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
        yield from _skip(scanner, ("]" if is_list else "", self.end))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareCalls:
    """An object whose keys and words have no quotes; a marker stands around text."""

    start: str
    quote: str
    end: str

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start,)

    def read(self, scanner: Scanner, calls: Calls, start: str) -> Waits[None]:
        """See `Shape.read`."""
        calls.begin((yield from scanner.match(_NAME_CHAR)))
        yield from scanner.spaces()
        if not (yield from scanner.takes("{")):
            return
        if (yield from _members(scanner, calls.arguments, replace(BARE, quotes=(self.quote,)), ":", "}")):
            calls.end()
        yield from _skip(scanner, (self.end,))


AnyShape: TypeAlias = JSONCalls | NamedCalls | TaggedCalls | PythonCalls | BareCalls


class _JSONText:
    """Passes on raw text as a JSON string, piece by piece."""

    def __init__(self, emit: Emit, *, trims_newline: bool) -> None:
        self._emit = emit
        self._trims_newline = trims_newline
        self._held = ""
        self._opening = '"'

    def push(self, text: str) -> None:
        text = self._held + text
        self._held = ""
        if self._trims_newline and text.endswith("\n"):
            text, self._held = text[:-1], "\n"
        self._emit(self._opening + _encode(text)[1:-1])
        self._opening = ""

    def close(self) -> None:
        self._emit(f'{self._opening}"')


def _members(scanner: Scanner, emit: Emit, literals: Literals, after_key: str, end: str) -> Waits[bool]:
    """Passes on `k=1, …)` as a JSON object. Returns whether it is complete."""
    opening = "{"
    while True:
        yield from scanner.spaces()
        if (yield from scanner.takes(end)):
            emit("{}" if opening == "{" else "}")
            return True
        key, found = yield from scanner.text_until(Markers([after_key]), MAX_NAME_CHARS)
        if found is None:
            return False
        emit(f"{opening}{_encode(key.strip())}: ")
        opening = ", "
        if not (yield from read_literal(scanner, emit, literals)):
            return False
        yield from scanner.spaces()
        yield from scanner.takes(",")


def _skip(scanner: Scanner, markers: tuple[str, ...]) -> Waits[None]:
    """Reads those of these markers that follow."""
    for marker in markers:
        if marker:
            yield from scanner.spaces()
            yield from scanner.takes(marker)


def _opens_wrapper(scanner: Scanner, key: str) -> Waits[bool]:
    yield from scanner.spaces()
    return (yield from scanner.takes("{")) and (yield from _key(scanner)) == key


def _key(scanner: Scanner) -> Waits[str]:
    """The next key of an object, up to its value; empty if there is none."""
    yield from scanner.spaces()
    yield from scanner.takes(",")
    yield from scanner.spaces()
    if (yield from scanner.peek()) != '"':
        return ""
    key = _text((yield from _value(scanner)))
    yield from scanner.spaces()
    if not (yield from scanner.takes(":")):
        return ""
    yield from scanner.spaces()
    return key


def _value(scanner: Scanner) -> Waits[str]:
    parts: list[str] = []
    is_complete = yield from scanner.json_value(parts.append)
    if not is_complete:
        raise NotACall
    return "".join(parts)


def _arguments(scanner: Scanner, emit: Emit) -> Waits[bool]:
    """Passes on an object as it is written. Some models write it as text in a string."""
    yield from scanner.spaces()
    first = yield from scanner.peek()
    if first == "{":
        return (yield from scanner.json_value(emit))
    parts: list[str] = []
    is_complete = yield from scanner.json_value(parts.append)
    if is_complete:
        text = _text("".join(parts)) if first == '"' else ""
        emit(text if text.lstrip().startswith("{") else "{}")
    return is_complete


def _text(value: str) -> str:
    """The text of a JSON string; empty for anything else."""
    try:
        decoded = json.loads(value)
    except ValueError:
        return ""
    return decoded if isinstance(decoded, str) else ""


def _json_of(raw: str) -> str:
    """The JSON of a value that is written as JSON, as a Python literal, or else as text."""
    stripped = raw.strip()
    try:
        json.loads(stripped, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _literal_of(stripped, raw)
    return stripped


def _literal_of(stripped: str, raw: str) -> str:
    if len(stripped) > _MAX_LITERAL_CHARS:
        return _encode(raw)
    try:
        return json.dumps(ast.literal_eval(stripped), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _encode(raw.strip("\n"))


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _attribute_type(attributes: str) -> bool | None:
    """Whether the attributes of an argument say that it is text; None = they do not say."""
    if 'string="' in attributes:
        return 'string="true"' in attributes
    return 'type="string"' in attributes if 'type="' in attributes else None


def _takes_text(schema: Json) -> bool | None:
    if not isinstance(schema, dict):
        return None
    kinds = schema.get("type")
    if kinds is not None:
        return kinds == "string" or (isinstance(kinds, list) and set(kinds) <= {"string"})
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return all(isinstance(value, str) for value in values) if isinstance(values, list) and values else None


def _encode(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
