"""Writes character-level rules as Lark for the engine, whose lexer is greedy: it always takes the longest lexeme.

A non-recursive part of a grammar becomes one lexeme if the lexer cannot take too much: no text of a lexeme can be
continued, in this lexeme or another one, by the first byte of what may follow it. Other parts are written character by
character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

MAX_NODES: Final = 600
"""Maximum number of nodes of a grammar that is analyzed; a larger one is written character by character."""
MAX_APART: Final = 24
"""Maximum number of lexemes that are split into characters; if more would be needed, all are split."""
MAX_POSITIONS: Final = 160
"""Maximum number of character positions in all lexemes, since the analysis compares pairs of them."""
NOTHING: Final = '""'


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """A character class: one of several characters."""

    lark: str
    leads: int
    """The first UTF-8 bytes of the characters, as a bit mask: bit n stands for byte n."""


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    lark: str


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    node: Node
    least: int
    most: int | None


Node: TypeAlias = Chars | Token | Rule | Sequence | Options | Times
Apart: TypeAlias = frozenset[str | int] | None
"""The parts that are split into characters: rules by name and nodes by identity; None = all parts."""


def children(node: Node) -> tuple[Node, ...]:
    """The direct parts of a node."""
    match node:
        case Sequence(parts) | Options(parts):
            return parts
        case Times(inner):
            return (inner,)
        case _:
            return ()


def walked(node: Node) -> Iterator[Node]:
    """Yields the node and all nodes nested in it."""
    yield node
    for part in children(node):
        yield from walked(part)


def lark_of_rules(rules: Mapping[str, Node], regular: frozenset[str]) -> str:
    """The grammar in the engine's Lark.

    Args:
        rules: all rules that are reachable from `root`.
        regular: names of the rules that are not recursive and refer to no token, directly or indirectly.
    """
    rules = {name: body if name in regular else _grouped(body, regular) for name, body in rules.items()}
    return _Writer(rules, regular, _apart(rules, regular)).text()


def _apart(rules: Mapping[str, Node], regular: frozenset[str]) -> Apart:
    """The regular parts that are split into characters, because as lexemes they would conflict."""
    if "root" in regular:
        return frozenset()
    nodes = [node for body in rules.values() for node in walked(body)]
    if len(nodes) > MAX_NODES or any(isinstance(node, Token) for node in nodes):
        return None
    apart = frozenset[str | int]()
    while (taken := _Lexer(rules, regular, apart).conflict()) is not None:
        apart |= {taken}
        if len(apart) > MAX_APART:
            return None
    return apart


def _grouped(node: Node, regular: frozenset[str]) -> Node:
    """A part of a rule, in which neighbors that may become one lexeme are grouped into nested sequences."""
    match node:
        case Sequence(parts):
            groups: list[list[Node]] = []
            for part in parts:
                if groups and _is_regular(part, regular) and _is_regular(groups[-1][-1], regular):
                    groups[-1].append(part)
                else:
                    groups.append([part])
            found = [Sequence(tuple(group)) if len(group) > 1 else _grouped(group[0], regular) for group in groups]
            return found[0] if len(found) == 1 else Sequence(tuple(found))
        case Options(options):
            return Options(tuple(_grouped(option, regular) for option in options))
        case Times(inner, least, most):
            return Times(_grouped(inner, regular), least, most)
        case _:
            return node


def _is_regular(node: Node, regular: frozenset[str]) -> bool:
    return not any(isinstance(each, Rule) and each.name not in regular for each in walked(node))


def _key(node: Node) -> str | int:
    return node.name if isinstance(node, Rule) else id(node)


def _is_lexeme(node: Node, regular: frozenset[str], apart: Apart) -> bool:
    if isinstance(node, Chars):
        return True
    return apart is not None and _key(node) not in apart and _is_regular(node, regular)


def _is_written(name: str, regular: frozenset[str], apart: Apart) -> bool:
    """Whether a rule is written as a rule of the engine, instead of being inlined into lexemes."""
    return name == "root" or apart is None or name in apart or name not in regular


class _Lexer:
    """Analyzes how a greedy lexer splits texts into the lexemes of a grammar, by positions as in Glushkov's automaton.

    Args:
        rules: the rules of the grammar.
        regular: names of the rules that may become lexemes.
        apart: rules and nodes that are split into characters.
    """

    def __init__(self, rules: Mapping[str, Node], regular: frozenset[str], apart: Apart) -> None:
        self._rules, self._regular, self._apart = rules, regular, apart
        self._leads: list[int] = []
        """The first bytes of the characters at each position, as a bit mask."""
        self._next: list[set[int]] = []
        self._owner: list[str | int] = []
        self._lexemes: dict[str | int, tuple[bool, set[int], set[int]]] = {}
        """For each lexeme: whether it may be empty, its first positions, and its last positions."""
        self._follow: dict[str | int, int] = {}
        """The first bytes of what may follow a lexeme or a rule, as a bit mask."""

    def conflict(self) -> str | int | None:
        """A lexeme that the lexer may confuse with another one, or may extend too far; None = there is none."""
        for name, body in self._rules.items():
            if _is_written(name, self._regular, self._apart):
                for node in self._found(body):
                    if _key(node) not in self._lexemes:
                        self._lexemes[_key(node)] = self._placed(node, _key(node))
                    if sum(1 for each in self._next if each) > MAX_POSITIONS and not isinstance(node, Chars):
                        return _key(node)
        self._find_followers()
        return self._greedy()

    def _found(self, node: Node) -> Iterator[Node]:
        """The lexemes in the body of a rule."""
        if _is_lexeme(node, self._regular, self._apart):
            yield node
        else:
            for part in children(node):
                yield from self._found(part)

    def _placed(self, node: Node, owner: str | int) -> tuple[bool, set[int], set[int]]:
        """Assigns positions to the characters of a lexeme. Limits of repetitions are ignored, which is conservative."""
        match node:
            case Chars(_, leads):
                self._leads.append(leads)
                self._next.append(set())
                self._owner.append(owner)
                return False, {len(self._leads) - 1}, {len(self._leads) - 1}
            case Rule(name):
                return self._placed(self._rules[name], owner)
            case Times(inner, least, most):
                if most == 0:
                    return True, set(), set()
                empty, first, last = self._placed(inner, owner)
                for position in last if most != 1 else ():
                    self._next[position] |= first
                return empty or least == 0, first, last
            case Options(options):
                placed = [self._placed(option, owner) for option in options]
                return (
                    any(each[0] for each in placed),
                    set[int]().union(*(each[1] for each in placed)),
                    set[int]().union(*(each[2] for each in placed)),
                )
            case Sequence(parts):
                return self._chained([self._placed(part, owner) for part in parts])
            case Token():
                raise AssertionError(node)

    def _chained(self, placed: list[tuple[bool, set[int], set[int]]]) -> tuple[bool, set[int], set[int]]:
        empty, first, last = True, set[int](), set[int]()
        for part_empty, part_first, part_last in placed:
            for position in last:
                self._next[position] |= part_first
            first = first | part_first if empty else first
            last = last | part_last if part_empty else part_last
            empty = empty and part_empty
        return empty, first, last

    def _find_followers(self) -> None:
        heads: dict[str, tuple[bool, int]] = {}
        while True:
            before = dict(heads), dict(self._follow)
            for name, body in self._rules.items():
                if _is_written(name, self._regular, self._apart):
                    heads[name] = self._head(body, heads)
                    self._follow_in(body, self._follow.get(name, 0), heads)
            if before == (heads, self._follow):
                return

    def _head(self, node: Node, heads: Mapping[str, tuple[bool, int]]) -> tuple[bool, int]:
        """Whether a part may be empty, and the first bytes of its texts."""
        if _key(node) in self._lexemes:
            empty, first, _ = self._lexemes[_key(node)]
            return empty, self._bytes(first)
        match node:
            case Rule(name):
                return heads.get(name, (False, 0))
            case Times(inner, least, _):
                empty, leads = self._head(inner, heads)
                return empty or least == 0, leads
            case Options(options):
                found = [self._head(option, heads) for option in options]
                return any(empty for empty, _ in found), union_of(leads for _, leads in found)
            case _:
                leads = 0
                for part in children(node):
                    empty, more = self._head(part, heads)
                    leads |= more
                    if not empty:
                        return False, leads
                return True, leads

    def _follow_in(self, node: Node, after: int, heads: Mapping[str, tuple[bool, int]]) -> None:
        """Records what may follow each lexeme and rule in a part, which the bytes in `after` may follow."""
        if _key(node) in self._lexemes or isinstance(node, Rule):
            self._follow[_key(node)] = self._follow.get(_key(node), 0) | after
            return
        match node:
            case Times(inner, _, most):
                self._follow_in(inner, after | (self._head(inner, heads)[1] if most != 1 else 0), heads)
            case Options(options):
                for option in options:
                    self._follow_in(option, after, heads)
            case _:
                for part in reversed(children(node)):
                    self._follow_in(part, after, heads)
                    empty, leads = self._head(part, heads)
                    after = leads | (after if empty else 0)

    def _greedy(self) -> str | int | None:
        """A lexeme that can continue with the same byte that may follow the end of another lexeme; None = none."""
        firsts = [position for _, first, _ in self._lexemes.values() for position in first]
        lasts = {position for _, _, last in self._lexemes.values() for position in last}
        waiting = [(p, q) for q in firsts if self._next[q] for p in firsts]
        seen = set[tuple[int, int]]()
        while waiting:
            p, q = waiting.pop()
            if (p, q) in seen or not self._leads[p] & self._leads[q]:
                continue
            seen.add((p, q))
            if p in lasts and self._bytes(self._next[q]) & self._follow.get(self._owner[p], 0):
                return self._owner[q]
            waiting += [(a, b) for a in self._next[p] for b in self._next[q]]
        return None

    def _bytes(self, positions: set[int]) -> int:
        return union_of(self._leads[position] for position in positions)


class _Writer:
    """Writes a grammar as Lark. See `_Lexer` for the arguments."""

    def __init__(self, rules: Mapping[str, Node], regular: frozenset[str], apart: Apart) -> None:
        self._rules, self._regular, self._apart = rules, regular, apart
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._terminals: dict[str, str] = {}
        """Names of terminals by their bodies."""

    def text(self) -> str:
        lines = [
            f"r{self._numbers[name]}: {self._written(body)}"
            for name, body in self._rules.items()
            if _is_written(name, self._regular, self._apart)
        ]
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        return "\n".join([f"start: r{self._numbers['root']}", *lines, *terminals])

    def _written(self, node: Node) -> str:
        """The Lark text of a part of a rule."""
        if not isinstance(node, Chars) and _is_lexeme(node, self._regular, self._apart):
            return self._lexeme(node)
        if isinstance(node, Rule):
            return f"r{self._numbers[node.name]}"
        return _composed(node, [self._written(part) for part in children(node)])

    def _lexeme(self, node: Node) -> str:
        is_empty, has_more = self._emptiness(node)
        if not has_more:
            return NOTHING
        name = self._terminal(f"({self._pattern(node)}) & /(?s:.+)/" if is_empty else self._pattern(node))
        return f"{name}?" if is_empty else name

    def _pattern(self, node: Node) -> str:
        """The Lark text of a part of a terminal."""
        if isinstance(node, Rule):
            return self._terminal(self._pattern(self._rules[node.name]))
        return _composed(node, [self._pattern(part) for part in children(node)])

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _emptiness(self, node: Node) -> tuple[bool, bool]:
        """Whether a part may be empty, and whether it may be non-empty."""
        match node:
            case Rule(name):
                return self._emptiness(self._rules[name])
            case Chars() | Token():
                return False, True
            case Times(most=0):
                return True, False
            case _:
                found = [self._emptiness(part) for part in children(node)]
                some = any if isinstance(node, Options) else all
                can_skip = isinstance(node, Times) and node.least == 0
                return can_skip or some(empty for empty, _ in found), any(more for _, more in found)


def _composed(node: Node, parts: list[str]) -> str:
    match node:
        case Chars(lark) | Token(lark):
            return lark
        case Times(_, least, most):
            return NOTHING if most == 0 else f"({parts[0]}){{{least},{'' if most is None else most}}}"
        case Options():
            return f"({' | '.join(parts)})"
        case _:
            return f"({' '.join(parts)})" if parts else NOTHING


def union_of(masks: Iterable[int]) -> int:
    """The bitwise OR of the masks."""
    found = 0
    for mask in masks:
        found |= mask
    return found
