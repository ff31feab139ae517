"""Converts literals in notations other than JSON to JSON, while they are generated."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from stoker.text.chat_formats.scanner import Emit, Markers, Scanner, Waits, is_mark

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORD_CHAR = re.compile(r"[^,\]})\s:]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}
_MAX_DEPTH = 64
_MAX_KEY_CHARS = 256


@dataclass(frozen=True, slots=True)
class Literals:
    """A notation for values."""

    quotes: tuple[str, ...]
    """The delimiters of strings; each begins and ends a string."""
    escapes: bool
    """A backslash in a string begins an escape sequence."""
    bare_keys: bool
    """Keys of objects have no quotes."""


PYTHON = Literals(('"', "'"), escapes=True, bare_keys=False)
BARE = Literals(('"',), escapes=False, bare_keys=True)


def read_literal(scanner: Scanner, emit: Emit, literals: Literals, depth: int = 0) -> Waits[bool]:
    """Emits one value as JSON. Returns whether the value is complete."""
    yield from scanner.spaces()
    if depth > _MAX_DEPTH:
        return False
    for quote in literals.quotes:
        if (yield from scanner.takes(quote)):
            return (yield from _string(scanner, emit, literals, quote))
    if (yield from scanner.takes("{")):
        return (yield from _object(scanner, emit, literals, depth))
    for opening, closing in (("[", "]"), ("(", ")")):
        if (yield from scanner.takes(opening)):
            return (yield from _list(scanner, emit, literals, depth, closing))
    return (yield from _word(scanner, emit))


def _object(scanner: Scanner, emit: Emit, literals: Literals, depth: int) -> Waits[bool]:
    separator = "{"
    while True:
        yield from scanner.spaces()
        if (yield from scanner.takes("}")):
            emit("{}" if separator == "{" else "}")
            return True
        emit(separator)
        separator = ", "
        if not (yield from _key(scanner, emit, literals)):
            return False
        emit(": ")
        if not (yield from read_literal(scanner, emit, literals, depth + 1)):
            return False
        yield from scanner.spaces()
        yield from scanner.takes(",")


def _key(scanner: Scanner, emit: Emit, literals: Literals) -> Waits[bool]:
    if not literals.bare_keys:
        is_complete = yield from read_literal(scanner, emit, literals)
        yield from scanner.spaces()
        return is_complete and (yield from scanner.takes(":"))
    key, found = yield from scanner.text_until(Markers([":"]), _MAX_KEY_CHARS)
    emit(json.dumps(key.strip(), ensure_ascii=False))
    return found is not None


def _list(scanner: Scanner, emit: Emit, literals: Literals, depth: int, closing: str) -> Waits[bool]:
    separator = "["
    while True:
        yield from scanner.spaces()
        if (yield from scanner.takes(closing)):
            emit("[]" if separator == "[" else "]")
            return True
        emit(separator)
        separator = ", "
        if not (yield from read_literal(scanner, emit, literals, depth + 1)):
            return False
        yield from scanner.spaces()
        yield from scanner.takes(",")


def _word(scanner: Scanner, emit: Emit) -> Waits[bool]:
    word = yield from scanner.match(_WORD_CHAR)
    if _NUMBER.fullmatch(word):
        emit(word)
    else:
        emit(_WORDS.get(word) or json.dumps(word, ensure_ascii=False))
    return bool(word)


def _string(scanner: Scanner, emit: Emit, literals: Literals, quote: str) -> Waits[bool]:
    emit('"')
    ends = Markers([quote, "\\"] if literals.escapes else [quote])
    while True:
        found = yield from scanner.until(ends, lambda text: emit(json.dumps(text, ensure_ascii=False)[1:-1]))
        if found == quote:
            emit('"')
            return True
        if found is None:
            return False
        emit(json.dumps((yield from _escape(scanner)), ensure_ascii=False)[1:-1])


def _escape(scanner: Scanner) -> Waits[str]:
    """Reads an escape sequence after its backslash; returns the character, or the text if the sequence is unknown."""
    char = yield from scanner.take()
    if char not in _CODES:
        return _ESCAPES.get(char, f"\\{char}")
    code = ""
    for _ in range(_CODES[char]):
        code += yield from scanner.take()
    try:
        decoded = chr(int(code, 16))
    except (ValueError, OverflowError):
        return f"\\{char}{code}"
    return f"\\{char}{code}" if is_mark(decoded) else decoded
