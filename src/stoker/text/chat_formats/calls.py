"""Parsing code shared by all shapes of tool calls: the receiver of calls, and values in JSON and similar notations."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Mapping

from stoker.text.chat_formats.custom import CustomInput
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Event
from stoker.text.chat_formats.scanner import Emit, Scanner, Waits
from stoker.text.messages import Json

MAX_NAME_CHARS = 256
NAME_CHAR = re.compile(r"[\w.-]")
_NAME = re.compile(r"[\w.:/-]+")
_MAX_LITERAL_CHARS = 1 << 16
"""Maximum length of a text that is tried as a Python literal."""


class NotACall(Exception):
    """The text looked like a tool call, but is not one: it is content."""


class Calls:
    """Receives the tool calls of one answer from a parser, and emits them as events.

    Args:
        emit: receives the events.
        tools: the JSON schema of each offered tool's parameters, by the tool's name; None = any name is accepted.
        on_begin: called when a call has begun: the text that was read of it can no longer become content.
        max_calls: further calls are dropped; None = no limit.
        custom: names of the custom tools, which take text.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        tools: Mapping[str, Mapping[str, Json]] | None,
        on_begin: Callable[[], None],
        max_calls: int | None = None,
        custom: Collection[str] = (),
    ) -> None:
        self._emit = emit
        self._tools = tools
        self._on_begin = on_begin
        self._max_calls = max_calls
        self._custom = custom
        self._num_calls = 0
        self._input: CustomInput | None = None
        """Extracts the text of the current call, if its tool is a custom tool."""
        self.name = ""

    def begin(self, name: str) -> None:
        """Begins a call.

        Raises:
            NotACall: no tool has this name.
        """
        if not _NAME.fullmatch(name) or (self._tools is not None and name not in self._tools):
            raise NotACall
        self.name = name
        self._num_calls += 1
        self._on_begin()
        self._input = CustomInput() if name in self._custom else None
        self._tell(CallBegin(name, is_custom=self._input is not None))

    def arguments(self, text: str) -> None:
        if self._input is not None:
            text = self._input.push(text)
        if text:
            self._tell(CallArguments(text))

    def end(self) -> None:
        if self._input is not None and (rest := self._input.end()):
            self._tell(CallArguments(rest))
        self._tell(CallEnd())

    def _tell(self, event: Event) -> None:
        if self._max_calls is None or self._num_calls <= self._max_calls:
            self._emit(event)

    def takes_text(self, parameter: str) -> bool | None:
        """Whether the schema of the current tool makes a parameter a string; None = the schema does not specify it."""
        schema = (self._tools or {}).get(self.name, {})
        properties = schema.get("properties")
        return takes_text(properties.get(parameter)) if isinstance(properties, dict) else None


class JSONText:
    """Encodes raw text as a JSON string, piece by piece."""

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
        self._emit(self._opening + encode_text(text)[1:-1])
        self._opening = ""

    def close(self) -> None:
        self._emit(f'{self._opening}"')


def skip(scanner: Scanner, markers: tuple[str, ...]) -> Waits[None]:
    """Skips each of the markers that comes next, in order."""
    for marker in markers:
        if marker:
            yield from scanner.spaces()
            yield from scanner.takes(marker)


def opens_wrapper(scanner: Scanner, key: str) -> Waits[bool]:
    yield from scanner.spaces()
    return (yield from scanner.takes("{")) and (yield from read_key(scanner)) == key


def read_key(scanner: Scanner) -> Waits[str]:
    """Reads the next key of an object and its colon; returns the key, or empty if there is none."""
    yield from scanner.spaces()
    yield from scanner.takes(",")
    yield from scanner.spaces()
    if (yield from scanner.peek()) != '"':
        return ""
    key = text_of((yield from read_value(scanner)))
    yield from scanner.spaces()
    if not (yield from scanner.takes(":")):
        return ""
    yield from scanner.spaces()
    return key


def read_value(scanner: Scanner) -> Waits[str]:
    parts: list[str] = []
    is_complete = yield from scanner.json_value(parts.append)
    if not is_complete:
        raise NotACall
    return "".join(parts)


def read_arguments(scanner: Scanner, emit: Emit) -> Waits[bool]:
    """Emits the arguments, a JSON object, unchanged. Some models write the object as text in a JSON string.

    Returns whether the value is complete.
    """
    yield from scanner.spaces()
    first = yield from scanner.peek()
    if first == "{":
        return (yield from scanner.json_value(emit))
    parts: list[str] = []
    is_complete = yield from scanner.json_value(parts.append)
    if is_complete:
        text = text_of("".join(parts)) if first == '"' else ""
        emit(text if text.lstrip().startswith("{") else "{}")
    return is_complete


def text_of(value: str) -> str:
    """The text of a JSON string; empty for anything else."""
    try:
        decoded = json.loads(value)
    except ValueError:
        return ""
    return decoded if isinstance(decoded, str) else ""


def json_of(raw: str) -> str:
    """Converts a value that is written as JSON, as a Python literal, or as plain text to JSON."""
    stripped = raw.strip()
    try:
        json.loads(stripped, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _literal_of(stripped, raw)
    return stripped


def _literal_of(stripped: str, raw: str) -> str:
    if len(stripped) > _MAX_LITERAL_CHARS:
        return encode_text(raw)
    try:
        return json.dumps(ast.literal_eval(stripped), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return encode_text(raw.strip("\n"))


def _no_constant(name: str) -> None:
    raise ValueError(name)


def attribute_type(attributes: str) -> bool | None:
    """Whether the attributes of an argument mark it as text; None = they do not specify it."""
    if 'string="' in attributes:
        return 'string="true"' in attributes
    return 'type="string"' in attributes if 'type="' in attributes else None


def takes_text(schema: Json) -> bool | None:
    """Whether a schema makes a value a string; None = it does not specify it."""
    if not isinstance(schema, dict):
        return None
    kinds = schema.get("type")
    if kinds is not None:
        return kinds == "string" or (isinstance(kinds, list) and set(kinds) <= {"string"})
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return all(isinstance(value, str) for value in values) if isinstance(values, list) and values else None


def encode_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
