"""Guesses how a sequence goes on: as it went on where its last entries stood before. It knows nothing but entries.

```
    entries   the cat sat on the mat , and the cat | sat on the mat , and …
              ~~~~~~~ stood here before    ~~~~~~~   ^ guessed, for as long as one likes
```

Answers repeat their prompt (code that is changed, texts that are quoted) and themselves (lists, loops).
Prompt lookup decoding: A. Saxena, 2023; arXiv:2304.04487 has the same idea for texts that were retrieved.
"""

from __future__ import annotations

from array import array

from stoker.core.batch import Entry

MAX_MATCH = 6
"""Entries that are compared at most: more say nothing more."""
_MAX_PLACES = 32
"""Earlier places of the last entry that are looked at, the latest first."""


class PromptLookup:
    """Where each entry of a sequence stood before: about ten bytes an entry.

    Args:
        entries: of the sequence; what is appended to them later is found, too.
    """

    __slots__ = ("_before", "_entries", "_last")

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._last: dict[Entry, int] = {}
        self._before = array("i")
        """For each position the latest one before it with the same entry, or -1."""

    def find(self) -> tuple[int, int]:
        """Where the guess begins, and how many entries before it equal the last ones: 1 … `MAX_MATCH`; 0 = none do.

        The longest match wins, and of equal ones the latest.
        """
        self._catch_up()
        entries, before = self._entries, self._before
        end = len(entries) - 1
        start, best = 0, 0
        place = before[end]
        for _ in range(_MAX_PLACES):
            if place < 0:
                break
            if place >= best and entries[place - best : place + 1] == entries[end - best :]:
                start, best = place + 1, self._match(place, end)
                if best == MAX_MATCH:
                    break
            place = before[place]
        return start, best

    def guess(self, start: int, count: int) -> list[Entry]:
        """`count` entries, at least one, from the position that `find` returned; beyond the end they repeat."""
        run = self._entries[start : start + count]
        return (run * -(-count // len(run)))[:count]

    def _match(self, place: int, end: int) -> int:
        entries, length = self._entries, 1
        while length < MAX_MATCH and length <= place and entries[place - length] == entries[end - length]:
            length += 1
        return length

    def _catch_up(self) -> None:
        last, before = self._last, self._before
        for position in range(len(before), len(self._entries)):
            entry = self._entries[position]
            before.append(last.get(entry, -1))
            last[entry] = position
