"""Finds stop strings in text that arrives in pieces, and holds back what might still become one. It knows no tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_CODE_BITS = 21
"""Number of bits of a code point."""
_BRANCH = -1
"""No character's number: the state does not go on from the one before it."""


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
        self._automaton = _Automaton(stops) if stops else None
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._state = 0

    def push(self, text: str) -> str:
        """The text that is now certain to come before any stop string; after a match always `""`."""
        if self._automaton is None or (self._state == 0 and self._first_chars.isdisjoint(text)):
            return text if self.matched is None else ""
        if self.matched is not None:
            return ""
        held_back = self._automaton.text(self._state)
        num_read, num_kept = self._read(self._automaton, text)
        num_safe = len(held_back) + num_read - num_kept
        return held_back[:num_safe] + text[: max(0, num_safe - len(held_back))]

    def flush(self) -> str:
        """The text that was held back, if no stop string came of it. Nothing may be pushed afterwards."""
        if self._automaton is None or self.matched is not None:
            return ""
        return self._automaton.text(self._state)

    def _read(self, automaton: _Automaton, text: str) -> tuple[int, int]:
        """Characters read until a match or the end, and how many of the last ones must not get out."""
        for position, code in enumerate(map(ord, text)):
            self._state = automaton.after(self._state, code)
            if self._state in automaton.matches:
                self.matched = automaton.matches[self._state]
                return position + 1, len(self.matched)
        return len(text), automaton.depths[self._state]


class _Automaton:
    """The states in flat arrays: 20 bytes for each character, and nothing for the garbage collector.

    A state says that the text read so far ends with the first `depths` characters of a stop string, and with no longer
    beginning of one. State 0 is that of no beginning. Those of one stop string follow each other, as far as no earlier
    one begins in the same way:

    ```
    stops:     "abc", "abd"
    states:    0  a  b  c     d        going on by c from 2 is adding one, by d it is a branch
               0  1  2  3     4
    ```
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.depths = array("i", [0])
        self.matches: dict[int, str] = {}
        """The longest stop string that the text ends with, in the states in which there is one."""
        self._stops = stops
        self._stop_indices = array("i", [0])
        """Some stop string that begins with the state's characters."""
        self._codes = array("i", [_BRANCH, _BRANCH])
        """The character that leads to a state from the one before it; the last entry lies after all states."""
        self._branches: dict[int, int] = {}
        self._fallbacks = array("i", [0])
        """The state of the longest proper tail that is also a beginning."""
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
        """The beginning of a stop string that the text read so far ends with."""
        return self._stops[self._stop_indices[state]][: self.depths[state]]

    def _child(self, state: int, code: int) -> int:
        """0 if there is none."""
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
        # By depth, so that a fallback is complete before it is needed.
        for state in sorted(range(1, len(parents)), key=self.depths.__getitem__):
            parent = parents[state]
            if parent > 0:
                code = ord(self._stops[self._stop_indices[state]][self.depths[state] - 1])
                self._fallbacks[state] = self.after(self._fallbacks[parent], code)
            longest = self.matches.get(self._fallbacks[state])
            if longest is not None:
                self.matches.setdefault(state, longest)
