"""KV of a graph whose attention updates it in place: inputs and outputs are bound to the same memory; no run copies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from stoker.backends.onnx.entry_rows import EntryRows
from stoker.backends.onnx.feeds import Feeds, make_run
from stoker.backends.onnx.kv import Rows
from stoker.backends.onnx.memory import KVMemory
from stoker.backends.onnx.runtime import CPU, Session
from stoker.backends.onnx.signature import Signature
from stoker.core.batch import Chunk
from stoker.core.stages import Mark
from stoker.core.tiers import KVBytes

_MAX_BINDINGS = 128
"""Maximum number of cached I/O bindings, one for each range of rows; each takes a few kilobytes."""


class InPlaceKV:
    """KV of all slots in host memory, and the forward pass over it. Satisfies `GraphKV`."""

    def __init__(
        self,
        session: Session,
        signature: Signature,
        memory: KVMemory,
        num_slots: int,
        mark: Mark,
        entries: EntryRows | None = None,
    ) -> None:
        assert session.device == CPU, "KV lies in the machine's memory"
        self._session = session
        self._signature = signature
        self._memory = memory
        self._rows = RowLedger(num_slots, memory.length, memory.swap)
        self._mark = mark
        self._feeds = Feeds(signature, memory.capacity, entries)
        self._bindings: OrderedDict[tuple[int, int], Any] = OrderedDict()

    def length(self, slot: int) -> int:
        """See `GraphKV.length`."""
        return self._memory.length(self._rows.row(slot))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `GraphKV.copy_prefix`."""
        self._rows.settle(target)
        self._memory.copy(self._rows.row(source), self._rows.row(target), length)

    def truncate(self, slot: int, length: int) -> None:
        """See `GraphKV.truncate`."""
        self._memory.set_length(self._rows.row(slot), length)

    def commit(self, slot: int, end: int) -> None:
        """See `GraphKV.commit`."""
        self._memory.set_length(self._rows.row(slot), end)

    def finish(self) -> None:
        """See `GraphKV.finish`."""
        self._memory.trim()

    def export(self, slot: int, start: int, end: int) -> KVBytes:
        """See `GraphKV.export`."""
        return self._memory.read(self._rows.row(slot), start, end)

    def restore(self, slot: int, start: int, end: int, state: memoryview) -> bool:
        """See `GraphKV.restore`."""
        if start == 0:
            self._rows.settle(slot)
        is_restored = self._memory.write(self._rows.row(slot), start, end, state)
        self._memory.trim()
        return is_restored

    def use(self, session: Session) -> None:
        """See `GraphKV.use`. Drops all bindings, which belong to the previous session."""
        assert session.device == CPU, "KV lies in the machine's memory"
        self._session = session
        self._bindings.clear()

    def compute(self, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        """See `GraphKV.compute`."""
        slots = [chunk.slot for chunk in chunks]
        for slot in slots:
            if self.length(slot) == 0:
                self._rows.settle(slot)
        first = self._rows.gather(slots)
        order = sorted(range(len(slots)), key=lambda index: self._rows.row(slots[index]))
        run = make_run([chunks[index] for index in order], num_logits)
        binding = self._binding(first, len(slots))
        logits = self._feeds.bind(binding, run, pads_left=False)
        self._mark("bind")
        self._session.inner.run_with_iobinding(binding)
        self._mark("forward")
        found = dict(zip(order, logits[:, logits.shape[1] - num_logits :], strict=True))
        return [found[index] for index in range(len(slots))]

    def _binding(self, first: int, num_rows: int) -> Any:
        key = (first, num_rows)
        if key in self._bindings:
            self._bindings.move_to_end(key)
            return self._bindings[key]
        if len(self._bindings) >= _MAX_BINDINGS:
            self._bindings.popitem(last=False)
        binding = self._bindings[key] = self._session.inner.io_binding()
        kind = self._signature.kv_type
        for index, tensor in enumerate(self._signature.kv):
            part = self._memory.tensor(index)[first : first + num_rows]
            place = (CPU, 0, kind, part.shape, part.ctypes.data)
            binding.bind_input(tensor.past, *place)
            binding.bind_output(tensor.present, *place)
        return binding


class RowLedger:
    """Assigns a row of KV memory to every slot, so that slots of one run have adjacent rows. It touches no memory.

    Args:
        num_slots: number of slots, and of rows.
        length: returns how many positions a row holds, which is the cost of moving the row.
        swap: exchanges the content of two rows.
    """

    def __init__(self, num_slots: int, length: Callable[[int], int], swap: Callable[[int, int], None]) -> None:
        self._row_of = list(range(num_slots))
        self._slot_of = list(range(num_slots))
        self._length = length
        self._swap = swap
        self._last = 0
        """The row in the middle of those of the last run."""

    def row(self, slot: int) -> int:
        """The row of a slot."""
        return self._row_of[slot]

    def settle(self, slot: int) -> None:
        """Moves an empty slot to the empty row nearest to the rows of the last run, which copies no KV."""
        assert self._length(self._row_of[slot]) == 0, "a slot that holds something"
        empty = (row for row in range(len(self._row_of)) if self._length(row) == 0)
        self._exchange(self._row_of[slot], min(empty, key=lambda row: abs(row - self._last)))

    def gather(self, slots: Sequence[int]) -> int:
        """Moves slots to adjacent rows, in any order, with as few copies as possible. Returns the first of the rows."""
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
