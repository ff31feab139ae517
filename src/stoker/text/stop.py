"""Finds stop strings in text that arrives in pieces, and holds back what might still become one. It knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


class StopMatcher:
    """Passes text through until the first stop string, of which no character ever gets out.

    The stop string that is complete first wins, that is, the match with the earliest end; of several that end at the
    same character, the longest. So what comes out depends on the text only, never on how it was cut into pieces.
    What is held back is always the longest tail of the text that some stop string begins with.

    The time is linear in the text, whatever the stop strings are: an Aho-Corasick automaton
    (https://doi.org/10.1145/360825.360855). Its state is what is held back, so that no text is kept.

    Args:
        stops: The stop strings, none of them empty. Without any, text passes through.
    """

    matched: str | None
    """The stop string that was found."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "empty stop strings are refused at the door"
        self.matched = None
        self._root = _build_automaton(stops) if stops else None
        self._state = self._root

    def push(self, text: str) -> str:
        """The text that is now certain to come before any stop string; after a match always `""`."""
        if self._root is None or self._state is None:
            return text
        if self.matched is not None:
            return ""
        before = self._state
        num_read, num_kept = self._read(self._root, before, text)
        num_safe = before.depth + num_read - num_kept
        return before.text[: min(before.depth, num_safe)] + text[: max(0, num_safe - before.depth)]

    def flush(self) -> str:
        """The text that was held back, if no stop string came of it. Nothing may be pushed afterwards."""
        if self._state is None or self.matched is not None:
            return ""
        return self._state.text[: self._state.depth]

    def _read(self, root: _Node, node: _Node, text: str) -> tuple[int, int]:
        """Characters read until a match or the end, and how many of the last ones must not get out."""
        for position, char in enumerate(text):
            while char not in node.children and node is not root:
                node = node.fallback or root
            node = node.children.get(char, root)
            if node.match is not None:
                self.matched = node.match
                return position + 1, len(node.match)
        self._state = node
        return len(text), node.depth


@dataclass(slots=True, eq=False)
class _Node:
    """One state: the text read so far ends with `text[:depth]`, and with no longer beginning of a stop string."""

    text: str
    """Some stop string that begins with this state's characters; shared, not copied."""
    depth: int
    children: dict[str, _Node] = field(default_factory=dict[str, "_Node"])
    fallback: _Node | None = None
    """The state of the longest proper tail that is also a beginning; None at the root."""
    match: str | None = None
    """The longest stop string that the text read so far ends with."""


def _build_automaton(stops: Sequence[str]) -> _Node:
    root = _Node("", 0)
    for stop in stops:
        node = root
        for depth, char in enumerate(stop, start=1):
            node = node.children.setdefault(char, _Node(stop, depth))
        node.match = stop
    _link_fallbacks(root)
    return root


def _link_fallbacks(root: _Node) -> None:
    level = list(root.children.values())
    for node in level:
        node.fallback = root
    for node in level:  # grows behind the loop: breadth first, so that a fallback is complete before it is needed
        for char, child in node.children.items():
            child.fallback = _longest_tail(node.fallback, char) or root
            child.match = child.match or child.fallback.match
            level.append(child)


def _longest_tail(node: _Node | None, char: str) -> _Node | None:
    while node is not None and char not in node.children:
        node = node.fallback
    return None if node is None else node.children[char]
