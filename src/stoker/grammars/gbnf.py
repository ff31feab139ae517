"""Translates GBNF, the grammar format of llama.cpp, to the engine's dialect of Lark with the same meaning.

Compiles nothing. `lexemes` decides which parts become lexemes of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from stoker.errors import GrammarInvalid
from stoker.grammars.lexemes import Chars, Node, Options, Rule, Sequence, Times, Token, lark_of_rules, union_of, walked
from stoker.grammars.patterns import Range, complement

TokenId: TypeAlias = Callable[[str], int | None]
"""Returns the id of the token that is exactly a text; None if the text is several tokens."""

MAX_REPEAT: Final = 2_000
MAX_DEPTH: Final = 64
"""Maximum depth of nested groups."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
"""The name of a rule. Underscores are allowed as in other programs that read GBNF, but not in llama.cpp."""
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TIMES = re.compile(r"\{[ \t]*(\d+)[ \t]*(?:(,)[ \t]*(\d*)[ \t]*)?\}")
_TOKEN = re.compile(r"(!?)<(?:\[(\d+)\]|([^\s<>\[\]][^\s<>]*))>")
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_SIGNS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def lark_of_gbnf(text: str, token_id: TokenId) -> str:
    """Translates a GBNF grammar to the engine's Lark.

    Args:
        text: the rules; `root` is the start rule.
        token_id: resolves `<text>` to a token.

    Raises:
        GrammarInvalid: the grammar is malformed; the message names the line and column.
    """
    rules = _Parser(text, token_id).rules()
    if "root" not in rules:
        raise GrammarInvalid("the grammar has no rule `root`")
    uses = {name: {node.name for node in walked(body) if isinstance(node, Rule)} for name, body in rules.items()}
    if unknown := sorted(set[str]().union(*uses.values()) - rules.keys()):
        raise GrammarInvalid(f"the grammar has no rule `{unknown[0]}`, which another one uses")
    used = _used(uses)
    return lark_of_rules({name: rules[name] for name in used}, _regular(rules, {name: uses[name] for name in used}))


def _used(uses: Mapping[str, set[str]]) -> list[str]:
    found = {"root": None}
    waiting = ["root"]
    while waiting:
        for name in sorted(uses[waiting.pop()] - found.keys()):
            found[name] = None
            waiting.append(name)
    return list(found)


def _regular(rules: Mapping[str, Node], uses: Mapping[str, set[str]]) -> frozenset[str]:
    """The rules that are not recursive and refer to no token, directly or indirectly."""
    found: set[str] = set()
    plain = [name for name in uses if not any(isinstance(node, Token) for node in walked(rules[name]))]
    while more := [name for name in plain if name not in found and uses[name] <= found]:
        found.update(more)
    return frozenset(found)


class _Parser:
    """A recursive-descent parser for one GBNF grammar."""

    def __init__(self, text: str, token_id: TokenId) -> None:
        self._text = text
        self._token_id = token_id
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._take(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            self._expect("::=")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._alternatives(_SPACE)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._wrong("the end of the line")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _alternatives(self, space: re.Pattern[str]) -> Node:
        found = [self._sequence(space)]
        while self._peek() == "|":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            found.append(self._sequence(space))
        return found[0] if len(found) == 1 else Options(tuple(found))

    def _sequence(self, space: re.Pattern[str]) -> Node:
        parts: list[Node] = []
        while (atom := self._atom()) is not None:
            self._skip(space)
            while (times := self._times()) is not None:
                atom = Times(atom, *times)
                self._skip(space)
            parts.append(atom)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self) -> Node | None:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == ".":
            self._at += 1
            return _ANY
        if char in ("<", "!"):
            return self._token()
        found = _NAME.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return Rule(found[0])

    def _literal(self) -> Node:
        self._at += 1
        chars: list[Node] = []
        while self._peek() != '"':
            code = self._character()
            chars.append(Chars(f"/{_lark_character(code)}/", _lead_bytes(code, code)))
        self._at += 1
        return Sequence(tuple(chars))

    def _class(self) -> Node:
        self._at += 1
        negation = "^" if self._peek() == "^" else ""
        self._at += len(negation)
        ranges: list[Range] = []
        while self._peek() != "]":
            low = high = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character()
            if high < low:
                raise self._wrong("a range from a lower to a higher character")
            ranges.append((low, high))
        self._at += 1
        if not ranges:
            return _ANY if negation else Chars(r"/[^\s\S]/", 0)
        leads = union_of(_lead_bytes(*each) for each in (complement(ranges) if negation else ranges))
        return Chars(f"/[{negation}{''.join(_lark_range(*each) for each in ranges)}]/", leads)

    def _group(self) -> Node:
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"at most {MAX_DEPTH} nested groups")
        self._skip(_SPACE_AND_LINES)
        inner = self._alternatives(_SPACE_AND_LINES)
        self._expect(")")
        self._depth -= 1
        return inner

    def _token(self) -> Node:
        negation, number, text = self._take(_TOKEN, "a token, as `<[10]>` or `<text>`").groups()
        token_id = int(number) if number else self._token_id(f"<{text}>")
        if token_id is None:
            raise GrammarInvalid(f"`<{text}>` is not one token of this model")
        return Token(f"<[{'^' if negation else ''}{token_id}]>")

    def _times(self) -> tuple[int, int | None] | None:
        if self._peek() in _SIGNS:
            self._at += 1
            return _SIGNS[self._text[self._at - 1]]
        if self._peek() != "{":
            return None
        low, comma, high = self._take(_TIMES, "a repetition, as `{2}`, `{2,}` or `{2,5}`").groups()
        least, most = int(low), (int(high) if high else None) if comma else int(low)
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._wrong(f"a repetition of up to {MAX_REPEAT} times")
        return least, most

    def _character(self) -> int:
        char = self._next()
        if char != "\\":
            return ord(char)
        kind = self._next()
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        digits = self._text[self._at : self._at + _HEX.get(kind, 0)]
        if kind not in _HEX or not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[kind]}}}", digits):
            raise self._wrong("an escape sequence")
        self._at += len(digits)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self._wrong("a character of Unicode")
        return code

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise self._wrong("more")
        self._at += 1
        return char

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._text, self._at)
        self._at = self._at if found is None else found.end()

    def _take(self, what: re.Pattern[str], name: str) -> re.Match[str]:
        found = what.match(self._text, self._at)
        if found is None:
            raise self._wrong(name)
        self._at = found.end()
        return found

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            raise self._wrong(f"`{text}`")
        self._at += len(text)

    def _wrong(self, expected: str) -> GrammarInvalid:
        before = self._text[: self._at]
        line, column = before.count("\n") + 1, self._at - before.rfind("\n")
        return GrammarInvalid(f"line {line}, column {column} of the grammar: expected {expected}")


def _lark_character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\u{{{code:x}}}"


def _lark_range(low: int, high: int) -> str:
    return _lark_character(low) if low == high else f"{_lark_character(low)}-{_lark_character(high)}"


def _lead_bytes(low: int, high: int) -> int:
    """The first UTF-8 bytes of the characters in a range, as bits as in `Chars.leads`."""
    first, last = (chr(code).encode("utf-8", "surrogatepass")[0] for code in (low, high))
    return (1 << last + 1) - (1 << first)


_ANY: Final = Chars(r"/[\s\S]/", _lead_bytes(0, 0x10FFFF))
