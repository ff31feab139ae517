"""Which slot lies in which row of the KV memory, so that those who are computed together lie side by side.

```
rows    0   1   2   3   4   5          slots 7, 2, 5 are computed together: rows 1 … 3
slots   4 [ 7   2   5 ] 0   1          7 leaves: 5 and 7 change places, and rows 1 … 2 are left
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class RowLedger:
    """A place for every slot. It touches no memory.

    Args:
        num_slots: and rows.
        length: how many positions a row holds: what it costs to move it.
        swap: makes two rows change places.
    """

    def __init__(self, num_slots: int, length: Callable[[int], int], swap: Callable[[int, int], None]) -> None:
        self._row_of = list(range(num_slots))
        self._slot_of = list(range(num_slots))
        self._length = length
        self._swap = swap
        self._last = 0
        """Where those who were computed together lay last."""

    def row(self, slot: int) -> int:
        """Where a slot lies."""
        return self._row_of[slot]

    def settle(self, slot: int) -> None:
        """Puts an empty slot near those who are computed together, where nothing has to be moved for it."""
        assert self._length(self._row_of[slot]) == 0, "a slot that holds something"
        empty = (row for row in range(len(self._row_of)) if self._length(row) == 0)
        self._exchange(self._row_of[slot], min(empty, key=lambda row: abs(row - self._last)))

    def gather(self, slots: Sequence[int]) -> int:
        """Puts slots side by side, moving as little as possible; returns their first row. Their order is open."""
        rows = [self._row_of[slot] for slot in slots]
        num_rows = len(rows)
        if max(rows) - min(rows) < num_rows:
            return self._note(min(rows), num_rows)
        starts = {min(row, len(self._row_of) - num_rows) for row in range(min(rows), max(rows) + 1)}
        first = min(starts, key=lambda start: (self._cost(start, rows), start))
        inside = set(range(first, first + num_rows))
        movers = [row for row in rows if row not in inside]
        gaps = sorted(inside - set(rows), key=self._length)
        for row, gap in zip(movers, gaps, strict=True):
            self._exchange(row, gap)
        return self._note(first, num_rows)

    def _note(self, first: int, num_rows: int) -> int:
        self._last = first + num_rows // 2
        return first

    def _cost(self, start: int, rows: Sequence[int]) -> int:
        inside = range(start, start + len(rows))
        movers = sum(self._length(row) for row in rows if row not in inside)
        wanted = set(rows)
        return movers + 2 * sum(self._length(row) for row in inside if row not in wanted)

    def _exchange(self, one: int, other: int) -> None:
        if one == other:
            return
        if self._length(one) or self._length(other):
            self._swap(one, other)
        first, second = self._slot_of[one], self._slot_of[other]
        self._slot_of[one], self._slot_of[other] = second, first
        self._row_of[first], self._row_of[second] = other, one
