"""Counts the cells of the pool for layers with sliding window attention. It knows no sequences, and frees nothing.

```
    slot 0   [ ………………………… | reach ]        Shared entries are counted once. Counting walks over the whole tree: it is
    slot 1   [ ………… | reach ]               done only when what was added since the last count could matter.
```
"""

from __future__ import annotations

from stoker.core.model_info import WindowPool
from stoker.core.prefix_tree import PrefixTree


class WindowCells:
    """Counts of window cells, owned by the `Ledger`. Held and promised cells together never exceed the capacity.

    Args:
        pool: sizes of the pool.
        tree: the entries of all slots.
    """

    def __init__(self, pool: WindowPool, tree: PrefixTree) -> None:
        self.capacity, self.reach = pool.capacity, pool.reach
        self._tree = tree
        self._at_most = 0
        """Upper bound on the held cells: the result of the last count, plus the entries added since."""
        self.num_promised = 0

    @property
    def held(self) -> int:
        """Number of cells that slots hold. Walks over the whole tree."""
        self._at_most = self._tree.num_within(self.reach)
        return self._at_most

    @property
    def is_half_full(self) -> bool:
        """At least half of the cells may be in use, by the upper bound."""
        return 2 * (self._at_most + self.num_promised) >= self.capacity

    def have_room(self, num_cells: int) -> bool:
        """Whether at least this number of cells is free; counts exactly only if the upper bound leaves it open."""
        room = self.capacity - self.num_promised - num_cells
        return self._at_most <= room or self.held <= room

    def promise(self, num_cells: int) -> None:
        """Sets cells aside for this step; a negative number gives some of them back."""
        self.num_promised += num_cells

    def add(self, num_cells: int) -> None:
        """Notes that slots hold more entries, which take at most `num_cells` cells."""
        self._at_most += num_cells

    def commit(self) -> None:
        """Notes that the step is computed: slots hold the promised entries."""
        assert self.have_room(0), "more cells of windows were promised than there are"
        self.add(self.num_promised)
        self.num_promised = 0
