"""Counts the cells of the KV pool: held by slots, promised to the current step, or free. It knows no sequences.

```
    capacity = [ held by slots | promised to this step | free ]
                                 becomes held on commit
```
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.core.batch import Chunk, Entry
from stoker.core.prefix_tree import PrefixTree
from stoker.core.window_cells import WindowCells


class Ledger:
    """Cell counts of one `KVCache`. The sum of held and promised cells never exceeds `capacity`.

    Args:
        capacity: cells of the pool; `KVCache.limit` changes it.
        tree: the entries of all slots; committed promises are added to it.
        shares_cells: slots with a common prefix hold it in the same cells.
        windows: the second pool, for layers with sliding window attention; None = there is none.
    """

    def __init__(
        self, capacity: int, tree: PrefixTree, *, shares_cells: bool, windows: WindowCells | None = None
    ) -> None:
        self.capacity = capacity
        self._tree = tree
        self.shares_cells = shares_cells
        self.windows = windows
        self._promised: dict[int, Sequence[Entry]] = {}
        self.num_promised = 0

    @property
    def held(self) -> int:
        return self._tree.num_distinct if self.shares_cells else self._tree.num_total

    @property
    def used(self) -> int:
        return self.held + self.num_promised

    @property
    def free(self) -> int:
        held = self._tree.num_distinct if self.shares_cells else self._tree.num_total
        return self.capacity - held - self.num_promised

    def has_room(self, num_entries: int) -> bool:
        """Both pools have free cells for this number of entries."""
        return self.free >= num_entries and (self.windows is None or self.windows.have_room(num_entries))

    def promise(self, slot: int, entries: Sequence[Entry], *, is_import: bool = False) -> None:
        """Sets cells aside for the entries that this step computes in a slot, or imports into an empty one."""
        assert slot not in self._promised
        self._promised[slot] = entries
        self.num_promised += len(entries)
        if self.windows is not None:
            self.windows.promise(min(len(entries), self.windows.reach) if is_import else len(entries))

    def promise_each(self, chunks: Iterable[Chunk]) -> None:
        """Like `promise`, for several slots without a promise in this step."""
        promised, before = self._promised, self.num_promised
        for slot, _, entries, _, _, _, _ in chunks:
            promised[slot] = entries
            self.num_promised += len(entries)
        if self.windows is not None:
            self.windows.promise(self.num_promised - before)

    def is_promised(self, slot: int) -> bool:
        """This step computes entries in the slot, or imports some."""
        return slot in self._promised

    def withdraw(self, slot: int, length: int) -> None:
        """Takes back the cells promised to a slot beyond `length` entries, as when its import failed there."""
        kept = self._promised[slot][: length - self._tree.length(slot)]
        before = len(self._promised[slot])
        self.num_promised -= before - len(kept)
        if self.windows is not None:
            self.windows.promise(min(len(kept), self.windows.reach) - min(before, self.windows.reach))
        self._promised[slot] = kept

    def commit(self) -> None:
        """Notes that the step is computed: the slots now hold the promised entries."""
        assert self.free >= 0, "more was promised than there is"
        self._tree.extend_each(self._promised)
        if self.windows is not None:
            self.windows.commit()
        self.abandon()

    def abandon(self) -> None:
        """Takes all promises back, for example after a failed step."""
        self._promised.clear()
        self.num_promised = 0
        if self.windows is not None:
            self.windows.num_promised = 0

    def check_integrity(self) -> None:
        """Asserts that cells add up."""
        assert 0 <= self.used <= self.capacity
        assert self.num_promised == sum(len(entries) for entries in self._promised.values())
        if self.windows is not None:
            assert self.windows.have_room(0), "more cells of windows are held than there are"
