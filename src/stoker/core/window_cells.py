"""Counts the cells of the pool for layers that see only a window. It knows no slot's owner, and frees nothing.

```
    slot 0   [ ………………………… | reach ]        Shared entries are counted once. Counting walks over the whole tree: it is
    slot 1   [ ………… | reach ]               done only when what was added since the last count could matter.
```
"""

from __future__ import annotations

from stoker.core.model_info import WindowPool
from stoker.core.prefix_tree import PrefixTree


class WindowCells:
    """Cells held + cells promised never exceed the capacity.

    Args:
        pool: its sizes.
        tree: what the slots hold.
    """

    def __init__(self, pool: WindowPool, tree: PrefixTree) -> None:
        self.capacity, self.reach = pool.capacity, pool.reach
        self._tree = tree
        self._at_most = 0
        """No more are held: what the last count found, and what was added since."""
        self.num_promised = 0

    @property
    def held(self) -> int:
        """Cells that slots hold, counted now."""
        self._at_most = self._tree.num_within(self.reach)
        return self._at_most

    @property
    def is_half_full(self) -> bool:
        """Half of the cells may be in use."""
        return 2 * (self._at_most + self.num_promised) >= self.capacity

    def have_room(self, num_cells: int) -> bool:
        """At least this number of cells is free."""
        room = self.capacity - self.num_promised - num_cells
        return self._at_most <= room or self.held <= room

    def promise(self, num_cells: int) -> None:
        """Sets cells aside for this step; negative: gives some of them back."""
        self.num_promised += num_cells

    def add(self, num_cells: int) -> None:
        """Slots hold more entries: so many cells at most."""
        self._at_most += num_cells

    def commit(self) -> None:
        """Slots hold what was promised."""
        assert self.have_room(0), "more cells of windows were promised than there are"
        self.add(self.num_promised)
        self.num_promised = 0
