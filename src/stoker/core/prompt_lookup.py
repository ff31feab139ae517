"""Prompt lookup (n-gram drafts): a sequence may continue as it did after an earlier occurrence of its last entries.

```
    entries   the cat sat on the mat , and the cat | sat on the mat , and …
              ~~~~~~~ stood here before    ~~~~~~~   ^ guessed, for as long as one likes
```

Answers repeat their prompt (edited code, quoted text) and themselves (lists, loops). Only entries are compared.
Prompt lookup decoding: A. Saxena, 2023; arXiv:2304.04487 has the same idea for texts that were retrieved.
"""

from __future__ import annotations

from array import array

from stoker.core.batch import Entry

MAX_MATCH = 6
"""Maximum length of a match, in entries: longer matches predict no better."""
_MAX_PLACES = 32
"""Maximum number of earlier occurrences of the last entry that are compared, latest first."""


class PromptLookup:
    """An index of the earlier occurrences of each entry of one sequence: about ten bytes per entry.

    Args:
        entries: the entries of the sequence; entries that are appended later are found, too.
    """

    __slots__ = ("_before", "_entries", "_last")

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._last: dict[Entry, int] = {}
        self._before = array("i")
        """For each position, the latest earlier position with the same entry; -1 = none."""

    def find(self) -> tuple[int, int]:
        """Start position of the draft, and length of the match before it: 1 … `MAX_MATCH`; 0 = there is no match.

        The longest match wins; among equally long ones, the latest.
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
        """`count` ≥ 1 entries from the position that `find` returned; after the end of the sequence they repeat."""
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
