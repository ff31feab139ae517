"""Finds stop strings in streamed text, and holds back text that may be the beginning of one. Independent of tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_CODE_BITS = 21
"""Number of bits of a code point."""
_BRANCH = -1
"""Not a code point: the state is not reached from the state before it in the array."""


class StopMatcher:
    """Passes text through until the first stop string. No character of a stop string is ever passed on.

    The match with the earliest end wins; of several matches with the same end, the longest. So the output depends only
    on the text, not on how it was split into pieces. The text held back is always the longest suffix of the input that
    is a prefix of some stop string.

    The time is linear in the length of the text, for any number of stop strings: this is an Aho-Corasick automaton
    (https://doi.org/10.1145/360825.360855). Its state determines the text held back, so no text is stored.

    Args:
        stops: the stop strings, none of them empty. Without stop strings, all text passes through.
    """

    matched: str | None
    """The stop string that was found; None = none so far."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "empty stop strings are refused at the door"
        self.matched = None
        self._automaton = _Automaton(stops) if stops else None
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._state = 0

    def push(self, text: str) -> str:
        """The text that is now certain to precede any stop string; after a match always `""`."""
        if self._automaton is None or (self._state == 0 and self._first_chars.isdisjoint(text)):
            return text if self.matched is None else ""
        if self.matched is not None:
            return ""
        held_back = self._automaton.text(self._state)
        num_read, num_kept = self._read(self._automaton, text)
        num_safe = len(held_back) + num_read - num_kept
        return held_back[:num_safe] + text[: max(0, num_safe - len(held_back))]

    def flush(self) -> str:
        """The text that was held back, if it did not become a stop string. `push` must not be called afterwards."""
        if self._automaton is None or self.matched is not None:
            return ""
        return self._automaton.text(self._state)

    def _read(self, automaton: _Automaton, text: str) -> tuple[int, int]:
        """The number of characters read until a match or the end, and how many of the last ones must be held back."""
        for position, code in enumerate(map(ord, text)):
            self._state = automaton.after(self._state, code)
            if self._state in automaton.matches:
                self.matched = automaton.matches[self._state]
                return position + 1, len(self.matched)
        return len(text), automaton.depths[self._state]


class _Automaton:
    """An Aho-Corasick automaton in flat arrays: 20 bytes per character, and no objects for the garbage collector.

    In a state, the text so far ends with the first `depths[state]` characters of a stop string, and with no longer
    prefix of one. State 0 is the empty prefix. The states of one stop string are consecutive, except where it shares a
    prefix with an earlier one:

    ```
    stops:     "abc", "abd"
    states:    0  a  b  c     d        from state 2, c leads to the next state, and d is a branch
               0  1  2  3     4
    ```
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.depths = array("i", [0])
        self.matches: dict[int, str] = {}
        """The longest stop string that the text ends with, by state; other states are missing."""
        self._stops = stops
        self._stop_indices = array("i", [0])
        """By state, the index of a stop string that begins with the state's characters."""
        self._codes = array("i", [_BRANCH, _BRANCH])
        """By state, the character that leads to it from the previous state; one more entry follows the last state."""
        self._branches: dict[int, int] = {}
        self._fallbacks = array("i", [0])
        """By state, the state of its longest proper suffix that is also a prefix of a stop string."""
        parents = array("i", [0])
        for index, stop in enumerate(stops):
            state = 0
            for depth, code in enumerate(map(ord, stop), start=1):
                state = self._child(state, code) or self._add(state, code, depth, index, parents)
            self.matches[state] = stop
        self._link_fallbacks(parents)

    def after(self, state: int, code: int) -> int:
        """The state after one more character."""
        codes, branches = self._codes, self._branches
        while True:
            if codes[state + 1] == code:
                return state + 1
            child = branches.get(state << _CODE_BITS | code)
            if child is not None or state == 0:
                return child or 0
            state = self._fallbacks[state]

    def text(self, state: int) -> str:
        """The prefix of a stop string that the text ends with in this state."""
        return self._stops[self._stop_indices[state]][: self.depths[state]]

    def _child(self, state: int, code: int) -> int:
        """The next state of `state` in the trie for a character; 0 = there is none."""
        if self._codes[state + 1] == code:
            return state + 1
        return self._branches.get(state << _CODE_BITS | code, 0)

    def _add(self, parent: int, code: int, depth: int, index: int, parents: array[int]) -> int:
        state = len(parents)
        if parent > 0 and parent == state - 1:
            self._codes[state] = code
        else:
            self._branches[parent << _CODE_BITS | code] = state
        self._codes.append(_BRANCH)
        self._fallbacks.append(0)
        self._stop_indices.append(index)
        self.depths.append(depth)
        parents.append(parent)
        return state

    def _link_fallbacks(self, parents: array[int]) -> None:
        # In order of depth, so that the fallbacks of shorter prefixes are known.
        for state in sorted(range(1, len(parents)), key=self.depths.__getitem__):
            parent = parents[state]
            if parent > 0:
                code = ord(self._stops[self._stop_indices[state]][self.depths[state] - 1])
                self._fallbacks[state] = self.after(self._fallbacks[parent], code)
            longest = self.matches.get(self._fallbacks[state])
            if longest is not None:
                self.matches.setdefault(state, longest)
