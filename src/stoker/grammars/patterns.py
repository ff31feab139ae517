"""Translates regular expressions of JSON schemas (ECMA 262) to the syntax that Rust and Python share. Compiles nothing.

A translated expression matches only what the original matches. Languages disagree about white space: here, a space is a
character that all of them call a space, and a non-space is one that none of them calls a space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]

_LAST: Final = 0x10FFFF
_DIGITS: Final = ((0x30, 0x39),)
_WORD: Final = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_BLANKS: Final = ((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029))
_SURE_SPACES: Final = (*_BLANKS, (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000))
_ANY_SPACES: Final = (*_SURE_SPACES, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))
_LINE_ENDS: Final = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROL: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_CODE = re.compile(r"u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|c([A-Za-z])")
_PROPERTY = re.compile(r"[pP]\{[\w=]+\}")


class PatternError(ValueError):
    """A regular expression that grammars do not support; the message names the reason."""


@lru_cache(maxsize=1024)
def rust_pattern(pattern: str) -> str:
    """The expression for the grammar engine.

    Raises:
        PatternError: the expression has look-around or back-references, or is malformed.
    """
    return _Translation(pattern, "$").text()


@lru_cache(maxsize=1024)
def finds(pattern: str, text: str) -> bool:
    """Whether the expression matches somewhere in the text.

    Raises:
        PatternError: see `rust_pattern`; or Python does not support a character class in the expression.
    """
    try:
        return re.search(_Translation(pattern, r"\Z").text(), text) is not None
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from None


def conjuncts(pattern: str) -> list[str]:
    """Splits leading look-aheads `(?=…)` off an expression, which matches a text exactly if all of the results do.

    >>> conjuncts(r"^(?=.*[0-9])(?=.*[a-z]).{8,}$")
    ['^(?:.*[0-9])', '^(?:.*[a-z])', '^.{8,}$']
    """
    found: list[str] = []
    rest = pattern
    while rest.startswith("^(?="):
        inner, closed, after = _group_at(rest, 1)
        if not closed or _QUANTIFIER.match(after) or _has_alternatives(after):
            return [pattern]
        found.append(f"^(?:{inner.removeprefix('?=')})")
        rest = f"^{after}"
    return [*found, rest]


def complement(ranges: Iterable[Range]) -> list[Range]:
    """The ranges of all other characters."""
    found: list[Range] = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


def other_than(words: Iterable[str]) -> str:
    """An expression in the syntax of JSON schemas that matches all texts except these."""
    return rf"^(?:{_others(sorted(set(words)))})$"


def literal(text: str) -> str:
    """An expression that matches exactly this text."""
    return "".join(map(_character, map(ord, text)))


def _group_at(pattern: str, start: int) -> tuple[str, str, str]:
    """The content of the group that opens at `start`, its closing parenthesis (empty if missing), and the rest."""
    depth = 0
    for at, char in _syntax(pattern, start):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return pattern[start + 1 : at], char, pattern[at + 1 :]
    return pattern[start + 1 :], "", ""


def _has_alternatives(pattern: str) -> bool:
    """Whether the expression has `|` outside of groups."""
    depth = 0
    for _, char in _syntax(pattern, 0):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "|" and depth == 0:
            return True
    return False


def _syntax(pattern: str, start: int) -> Iterator[tuple[int, str]]:
    """Yields the characters that are neither escaped nor in a character class, with their positions."""
    in_class = False
    at = start
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            yield at, char
        at += 1


def _others(words: list[str]) -> str:
    rest: dict[str, list[str]] = {}
    for word in words:
        if word:
            rest.setdefault(word[0], []).append(word[1:])
    options = [f"{literal(first)}(?:{_others(tails)})" for first, tails in rest.items()]
    options.append(f"[^{''.join(map(literal, rest))}][^]*")
    return "|".join(options if "" in words else ["", *options])


def _character(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise PatternError("half of a surrogate pair is not a character")
    char = chr(code)
    return char if code > 0x7F or char.isalnum() else f"\\x{code:02x}"


def _class(ranges: Iterable[Range], *, negated: bool = False) -> str:
    """The character class of some ranges, without surrogates, which are not characters."""
    parts: list[str] = []
    for low, high in ranges:
        for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
            if first <= last:
                parts.append(_character(first) + (f"-{_character(last)}" if first < last else ""))
    if not parts:
        if not negated:
            raise PatternError("an empty class")
        return r"[\s\S]"
    return f"[{'^' if negated else ''}{''.join(parts)}]"


class _Translation:
    """Translates one expression from left to right."""

    def __init__(self, pattern: str, end: str) -> None:
        self._pattern = pattern
        self._end = end
        self._at = 0

    def text(self) -> str:
        parts: list[str] = []
        while self._at < len(self._pattern):
            parts.append(self._quantified(self._atom()))
        return "".join(parts)

    def _quantified(self, atom: str) -> str:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return atom
        self._at = found.end()
        if self._pattern[self._at : self._at + 1] == "?":
            self._at += 1  # laziness does not change which texts match
        return atom + found[0]

    def _atom(self) -> str:
        char = self._next()
        match char:
            case "\\":
                return self._escape()
            case "[":
                return self._bracket()
            case ".":
                return _class(_LINE_ENDS, negated=True)
            case "(":
                return self._group()
            case "$":
                return self._end
            case "^" | "|" | ")" | "*" | "+" | "?":
                return char
            case _:
                return _character(ord(char))

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise PatternError("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _group(self) -> str:
        rest = self._pattern[self._at :]
        named = re.match(r"\?P?<\w+>", rest)
        if named or rest.startswith("?:"):
            self._at += len(named[0]) if named else 2
            return "(?:"
        if rest.startswith("?"):
            raise PatternError(f"`({rest[:3]}`: look-around and flags are not supported")
        return "(?:"

    def _escape(self) -> str:
        named = _PROPERTY.match(self._pattern, self._at)
        if named is not None:
            self._at = named.end()
            return "\\" + named[0]
        ranges = self._escaped(negated=False)
        return _class(ranges) if len(ranges) > 1 or ranges[0][0] < ranges[0][1] else _character(ranges[0][0])

    def _escaped(self, *, negated: bool) -> list[Range]:
        """The characters that the escape after a backslash stands for.

        Args:
            negated: the escape is in a negated class, where `\\s` includes all that any language calls a space.
        """
        char = self._next()
        sets = {"d": _DIGITS, "w": _WORD, "s": _ANY_SPACES if negated else _SURE_SPACES}
        if char in sets:
            return list(sets[char])
        if char in "DW":
            return complement(sets[char.lower()])
        if char == "S":
            return complement(_SURE_SPACES if negated else _ANY_SPACES)
        code = self._code(char)
        return [(code, code)]

    def _code(self, char: str) -> int:
        if char in _CONTROL and not (char == "0" and self._pattern[self._at : self._at + 1].isdigit()):
            return _CONTROL[char]
        found = _CODE.match(self._pattern, self._at - 1)
        if found is None:
            if char.isalnum():
                what = "a back-reference" if char.isdigit() or char == "k" else "not supported"
                raise PatternError(f"`\\{char}` is {what}")
            return ord(char)
        self._at = found.end()
        if found[4]:
            return ord(found[4]) % 32
        code = int(found[1] or found[2] or found[3], 16)
        low = re.match(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})", self._pattern[self._at :])
        if 0xD800 <= code < 0xDC00 and low:
            self._at += 6
            code = 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        return code

    def _bracket(self) -> str:
        negated = self._pattern[self._at : self._at + 1] == "^"
        self._at += negated
        ranges: list[Range] = []
        while (char := self._next()) != "]":
            item = self._item(char, negated=negated)
            following = self._pattern[self._at : self._at + 2]
            if following.startswith("-") and following != "-]" and len(item) == 1 and item[0][0] == item[0][1]:
                self._at += 1
                item = self._range(item[0][0], self._item(self._next(), negated=negated))
            ranges += item
        return _class(ranges, negated=negated)

    def _item(self, char: str, *, negated: bool) -> list[Range]:
        if char != "\\":
            return [(ord(char), ord(char))]
        if self._pattern[self._at : self._at + 1] in ("b", "p", "P"):
            raise PatternError(f"`\\{self._pattern[self._at]}` in a class is not supported")
        return self._escaped(negated=negated)

    def _range(self, low: int, last: list[Range]) -> list[Range]:
        if len(last) > 1 or last[0][0] != last[0][1]:
            return [(low, low), (ord("-"), ord("-")), *last]
        if last[0][0] < low:
            raise PatternError("a range from a higher character to a lower one")
        return [(low, last[0][0])]
