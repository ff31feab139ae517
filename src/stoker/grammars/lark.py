"""Converts Lark grammars to regular expressions, for texts that are embedded in another format, such as JSON.

Compiles nothing. Rules are inlined. A rule that is recursive at its beginning or end becomes a repetition; other
recursion, such as in parentheses, is expanded to a limited depth. So the expression matches only texts of the grammar,
but lacks deeply nested ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from stoker.errors import GrammarInvalid, GrammarTooComplex
from stoker.grammars.patterns import literal

MAX_CHARS: Final = 64 << 10
"""Maximum length of a grammar, in characters."""
_MAX_EXPRESSION: Final = 48 << 10
_MAX_NESTING: Final = 8
"""Maximum depth to which recursive rules are expanded."""
_MAX_DEPTH: Final = 64
"""Maximum depth of nested groups, and of rules inside rules."""
_MAX_REPEAT: Final = 2_000
_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|\#[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*")(?P<fold>i?)
    |/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[a-z]*)
    |(?P<word>(?:(?m:^)[!?])?_?[A-Za-z]\w*)
    |(?P<number>\d+)
    |(?P<sign>%import|%ignore|->|\.\.|[:|()\[\]?*+~{},.])""",
    re.VERBOSE | re.DOTALL,
)
_DOTS: Final = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]|\.", re.DOTALL)
_COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "SIGNED_FLOAT": r"[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "SQL_COMMENT": "--[^\n]*",
}


@dataclass(frozen=True, slots=True)
class _Text:
    pattern: str


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Any:
    options: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Times:
    node: _Node
    least: int
    most: int | None


_Node: TypeAlias = _Text | _Name | _Sequence | _Any | _Times


def regex_of_lark(text: str) -> str:
    """A regular expression in the syntax of JSON schemas that matches texts of the grammar.

    Raises:
        GrammarInvalid: the grammar is malformed, or has a feature that cannot be converted.
        GrammarTooComplex: the grammar or the expression is too long, or nested too deeply.
    """
    if len(text) > MAX_CHARS:
        raise GrammarTooComplex(f"the Lark grammar has over {MAX_CHARS} characters")
    parser = _Parser(text)
    rules = parser.rules()
    if "start" not in rules:
        raise GrammarInvalid("the Lark grammar has no rule `start`")
    found: str | None = None
    for nesting in range(1, _MAX_NESTING + 1):
        try:
            writer = _Writer(rules, parser.ignored, nesting)
            found = writer.start() or found
        except GrammarTooComplex:
            if found is None:
                raise
            break
        if not writer.is_cut:
            break
    if found is None:
        raise GrammarInvalid("no text matches the Lark grammar")
    return found


class _Parser:
    """A recursive-descent parser for one Lark grammar."""

    def __init__(self, text: str) -> None:
        self.ignored: list[_Node] = []
        self._text = text
        self._tokens: list[re.Match[str]] = []
        self._at = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(at, f"{text[at : at + 12]!r} is not supported in the grammar of a tool")
            at = found.end()
            if found["skip"] is None:
                self._tokens.append(found)

    def rules(self) -> dict[str, _Node]:
        rules: dict[str, _Node] = {}
        while self._at < len(self._tokens):
            if self._takes("%import"):
                rules |= self._imported()
            elif self._takes("%ignore"):
                self.ignored.append(self._any(0))
            else:
                name = self._word()
                if self._takes("."):
                    self._number()
                self._expect(":")
                rules[name] = self._any(0)
        return rules

    def _imported(self) -> dict[str, _Node]:
        """`%import common.INT -> NUMBER` or `%import common (INT, WS)`."""
        self._word()
        if self._takes("("):
            names = [self._word()]
            while self._takes(","):
                names.append(self._word())
            self._expect(")")
            return {name: self._common(name) for name in names}
        self._expect(".")
        name = self._word()
        return {self._word() if self._takes("->") else name: self._common(name)}

    def _common(self, name: str) -> _Node:
        if name not in _COMMON:
            raise self._wrong(self._place(), f"`common` has no {name} here")
        return _Text(_COMMON[name])

    def _any(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise GrammarTooComplex(f"the Lark grammar has over {_MAX_DEPTH} nested groups")
        self._takes("|")
        options = [self._sequence(depth)]
        while self._takes("|"):
            options.append(self._sequence(depth))
        return _Any(tuple(options))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while (atom := self._atom(depth)) is not None:
            while (times := self._times()) is not None:
                atom = _Times(atom, *times)
            parts.append(atom)
        if self._takes("->"):
            self._word()
        return _Sequence(tuple(parts))

    def _atom(self, depth: int) -> _Node | None:
        token = self._peek()
        if token is None or self._begins_rule():
            return None
        if self._takes("("):
            inner = self._any(depth + 1)
            self._expect(")")
            return inner
        if self._takes("["):
            inner = self._any(depth + 1)
            self._expect("]")
            return _Times(inner, 0, 1)
        if token["word"]:
            return _Name(self._word())
        if token["text"]:
            self._at += 1
            return self._string(token)
        if token["regex"]:
            self._at += 1
            return _Text(f"(?:{self._expression(token)})")
        return None

    def _string(self, token: re.Match[str]) -> _Node:
        text = self._unquoted(token)
        if self._takes(".."):
            last = self._peek()
            if last is None or not last["text"]:
                raise self._wrong(self._place(), "expected the last character of a range")
            self._at += 1
            ends = text, self._unquoted(last)
            if len(ends[0]) != 1 or len(ends[1]) != 1 or ends[0] > ends[1]:
                raise self._wrong(last.start(), "a range is from a lower to a higher character")
            return _Text(f"[{literal(ends[0])}-{literal(ends[1])}]")
        if not token["fold"]:
            return _Text(literal(text))
        return _Text(
            "".join(
                f"[{literal(each.lower())}{literal(each.upper())}]" if each.isalpha() else literal(each)
                for each in text
            )
        )

    def _unquoted(self, token: re.Match[str]) -> str:
        try:
            return json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", token["text"]), strict=False)
        except ValueError:
            raise self._wrong(token.start(), "the text has an unknown escape sequence") from None

    def _expression(self, token: re.Match[str]) -> str:
        flags = set(token["flags"]) - {"u"}
        if flags - {"s"}:
            raise self._wrong(token.start(), f"the flag {min(flags - {'s'})!r} of an expression is not supported")
        if not flags:
            return token["regex"]
        return _DOTS.sub(lambda found: "[^]" if found[0] == "." else found[0], token["regex"])

    def _times(self) -> tuple[int, int | None] | None:
        for sign, times in (("?", (0, 1)), ("*", (0, None)), ("+", (1, None))):
            if self._takes(sign):
                return times
        if self._takes("~"):
            least = self._number()
            return self._checked(least, self._number() if self._takes("..") else least)
        if not self._takes("{"):
            return None
        least = 0 if self._is_next(",") else self._number()
        most: int | None = least
        if self._takes(","):
            most = None if self._is_next("}") else self._number()
        self._expect("}")
        return self._checked(least, most)

    def _checked(self, least: int, most: int | None) -> tuple[int, int | None]:
        if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
            raise self._wrong(self._place(), f"a repetition is of up to {_MAX_REPEAT} times")
        return least, most

    def _begins_rule(self) -> bool:
        """Whether a new rule comes next: a name, an optional priority, and a colon."""
        following = [token[0] for token in self._tokens[self._at + 1 : self._at + 4]]
        token = self._peek()
        is_word = token is not None and bool(token["word"])
        return is_word and (following[:1] == [":"] or (following[:1] == ["."] and following[2:] == [":"]))

    def _peek(self) -> re.Match[str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is_next(self, sign: str) -> bool:
        token = self._peek()
        return token is not None and token["sign"] == sign

    def _takes(self, sign: str) -> bool:
        found = self._is_next(sign)
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._wrong(self._place(), f"expected `{sign}`")

    def _word(self) -> str:
        token = self._peek()
        if token is None or not token["word"]:
            raise self._wrong(self._place(), "expected a name")
        self._at += 1
        return token["word"].lstrip("!?")

    def _number(self) -> int:
        token = self._peek()
        if token is None or not token["number"]:
            raise self._wrong(self._place(), "expected a number")
        self._at += 1
        return int(token["number"][:9])

    def _place(self) -> int:
        token = self._peek()
        return len(self._text) if token is None else token.start()

    def _wrong(self, at: int, message: str) -> GrammarInvalid:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return GrammarInvalid(f"line {line}, column {column} of the Lark grammar: {message}")


class _Writer:
    """Writes the regular expression of one grammar.

    Args:
        rules: the rules by name.
        ignored: what may occur between lexemes (`%ignore`).
        nesting: maximum depth to which recursive rules are expanded.
    """

    def __init__(self, rules: dict[str, _Node], ignored: Sequence[_Node], nesting: int) -> None:
        self._rules = {name: _without_ends(name, rule) for name, rule in rules.items()}
        self._nesting = nesting
        self._open: list[str] = []
        self._ignored = ""
        self.is_cut = False
        """Some recursion was cut off at the maximum depth."""
        self._ignored = "".join(f"(?:{'|'.join(filter(None, map(self._terminal, ignored)))})*" for _ in ignored[:1])

    def start(self) -> str | None:
        """The expression; None = the grammar has no text within the maximum depth."""
        found = self._written(_Name("start"), is_lexeme=False)
        return None if found is None else self._ignored + found

    def _terminal(self, node: _Node) -> str | None:
        return self._written(node, is_lexeme=True)

    def _written(self, node: _Node, *, is_lexeme: bool) -> str | None:
        """The expression of a node; None if no text matches it.

        Args:
            node: a part of a rule.
            is_lexeme: the node is inside a lexeme, where nothing is ignored.
        """
        match node:
            case _Text(pattern):
                found = pattern + ("" if is_lexeme else self._ignored)
            case _Name(name):
                found = self._named(name, is_lexeme=is_lexeme)
            case _Sequence(parts):
                written = [self._written(part, is_lexeme=is_lexeme) for part in parts]
                found = None if None in written else "".join(filter(None, written))
            case _Any(options):
                written = [self._written(option, is_lexeme=is_lexeme) for option in options]
                known = [option for option in written if option is not None]
                found = (known[0] if len(known) == 1 else f"(?:{'|'.join(known)})") if known else None
            case _Times(inner, least, most):
                written = self._written(inner, is_lexeme=is_lexeme)
                if written is None:
                    return None if least else ""
                found = f"(?:{written}){{{least},{'' if most is None else most}}}"
        if found is not None and len(found) > _MAX_EXPRESSION:
            raise GrammarTooComplex("the Lark grammar is too complex for the grammar of a tool")
        return found

    def _named(self, name: str, *, is_lexeme: bool) -> str | None:
        if name not in self._rules:
            raise GrammarInvalid(f"the Lark grammar has no rule `{name}`, which another one uses")
        if self._open.count(name) >= self._nesting:
            self.is_cut = True
            return None
        if len(self._open) >= _MAX_DEPTH:
            raise GrammarTooComplex(f"the Lark grammar has over {_MAX_DEPTH} nested rules")
        self._open.append(name)
        is_terminal = not is_lexeme and name.lstrip("_")[:1].isupper()
        found = self._written(self._rules[name], is_lexeme=is_lexeme or is_terminal)
        self._open.pop()
        return found + self._ignored if found is not None and is_terminal else found


def _without_ends(name: str, rule: _Node) -> _Node:
    """The rule with repetitions instead of recursion at the beginning or the end of its options."""
    own = _Name(name)
    options = rule.options if isinstance(rule, _Any) else (rule,)
    before: list[_Node] = []
    behind: list[_Node] = []
    both: list[_Node] = []
    others: list[_Node] = []
    for option in options:
        parts = option.parts if isinstance(option, _Sequence) else (option,)
        starts, ends = parts[:1] == (own,), parts[-1:] == (own,)
        if parts == (own,):
            continue
        if starts and ends:
            both.append(_Sequence(parts[1:-1]))
        elif starts:
            behind.append(_Sequence(parts[1:]))
        elif ends:
            before.append(_Sequence(parts[:-1]))
        else:
            others.append(option)
    if len(others) == len(options) or not others:
        return rule
    single = _Sequence((_Times(_Any(tuple(before)), 0, None), _Any(tuple(others)))) if before else _Any(tuple(others))
    more = [*behind, *(_Sequence((between, single)) for between in both)]
    return _Sequence((single, _Times(_Any(tuple(more)), 0, None))) if more else single
