"""KV of a graph that returns its KV as new, longer tensors: the outputs of a run are inputs of the next, on the device.

```
padded left     [ · · a a a a | a ]     attention joins past and new: sequences end together
                [ b b b b b b | b ]
padded right    [ a a a a a · · ]       `GroupQueryAttention`: each new position follows its own sequence
                [ b b b b b b b ]
```

The tensors of one run serve the next while the same sequences are computed together (a group). When a group dissolves,
its new positions are copied to host memory, from which the next group's tensors are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.backends.onnx.entry_rows import EntryRows
from stoker.backends.onnx.feeds import Feeds, make_run
from stoker.backends.onnx.kv import Rows
from stoker.backends.onnx.memory import KVMemory
from stoker.backends.onnx.runtime import Session, runtime
from stoker.backends.onnx.signature import Signature
from stoker.core.batch import Chunk
from stoker.core.stages import Mark
from stoker.core.tiers import KVBytes


class _Group:
    """Sequences that are computed together, with the KV tensors that the last run returned."""

    def __init__(self, slots: tuple[int, ...], lengths: list[int], tensors: list[Any]) -> None:
        self.slots = slots
        self.tensors = tensors
        """Tensors of ONNX Runtime, one for each `KVTensor` of the signature."""
        self.lengths = lengths
        """Positions of each sequence in the tensors."""
        self.saved = list(lengths)
        """Positions of each sequence that are in host memory, too."""

    @property
    def num_padded(self) -> int:
        """Positions of the longest sequence, to which the others are padded."""
        return max(self.lengths)


class GrowingKV:
    """KV of all slots, and the forward pass over it. Satisfies `GraphKV`. The row of a slot has the slot's number."""

    def __init__(
        self, session: Session, signature: Signature, memory: KVMemory, mark: Mark, entries: EntryRows | None = None
    ) -> None:
        self._session = session
        self._signature = signature
        self._memory = memory
        self._mark = mark
        self._feeds = Feeds(signature, memory.capacity, entries)
        self._group_of: dict[int, _Group] = {}
        self._pads_left = not signature.is_in_place

    def length(self, slot: int) -> int:
        """See `GraphKV.length`."""
        return self._memory.length(slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `GraphKV.copy_prefix`."""
        self._save(source)
        self._memory.copy(source, target, length)

    def truncate(self, slot: int, length: int) -> None:
        """See `GraphKV.truncate`."""
        self._save(slot)
        self._memory.set_length(slot, length)

    def commit(self, slot: int, end: int) -> None:
        """See `GraphKV.commit`."""
        self._memory.set_length(slot, end)

    def finish(self) -> None:
        """See `GraphKV.finish`."""
        self._memory.trim()

    def export(self, slot: int, start: int, end: int) -> KVBytes:
        """See `GraphKV.export`."""
        self._save(slot, leaves=False)
        return self._memory.read(slot, start, end)

    def restore(self, slot: int, start: int, end: int, state: memoryview) -> bool:
        """See `GraphKV.restore`."""
        self._save(slot)
        is_restored = self._memory.write(slot, start, end, state)
        self._memory.trim()
        return is_restored

    def use(self, session: Session) -> None:
        """See `GraphKV.use`. All groups dissolve: their tensors are on the device of the previous session."""
        for slot in list(self._group_of):
            self._save(slot)
        self._session = session

    def compute(self, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        """See `GraphKV.compute`."""
        order = sorted(range(len(chunks)), key=lambda index: chunks[index].slot)
        run = make_run([chunks[index] for index in order], num_logits)
        group = self._group(tuple(chunk.slot for chunk in run.chunks))
        binding = self._session.inner.io_binding()
        logits = self._feeds.bind(binding, run, pads_left=self._pads_left)
        for tensor, past in zip(self._signature.kv, group.tensors, strict=True):
            binding.bind_ortvalue_input(tensor.past, past)
        for tensor in self._signature.kv:
            binding.bind_output(tensor.present, self._session.device, self._session.device_id)
        self._mark("bind")
        self._session.inner.run_with_iobinding(binding)
        self._mark("forward")
        group.tensors = binding.get_outputs()[1:]
        group.lengths = run.ends.tolist()
        found = dict(zip(order, logits[:, logits.shape[1] - num_logits :], strict=True))
        return [found[index] for index in range(len(chunks))]

    def _group(self, slots: tuple[int, ...]) -> _Group:
        """The group of exactly these slots: the existing one, or a new one with tensors gathered from host memory."""
        group = self._group_of.get(slots[0])
        if group is not None and group.slots == slots:
            assert group.lengths == [self.length(slot) for slot in slots], "a slot that is cut leaves its group"
            return group
        for slot in slots:
            self._save(slot)
        lengths = [self.length(slot) for slot in slots]
        found = _Group(slots, lengths, self._gather(slots, lengths))
        self._group_of |= dict.fromkeys(slots, found)
        return found

    def _gather(self, slots: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        longest = max(lengths)
        tensors: list[Any] = []
        for index, tensor in enumerate(self._signature.kv):
            rows = self._memory.tensor(index)
            past = np.zeros((len(slots), tensor.num_heads, longest, tensor.head_size), dtype=self._signature.kv_type)
            for at, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
                past[at, :, self._begin(longest, length) :][:, :length] = rows[slot, :, :length]
            tensors.append(runtime().OrtValue.ortvalue_from_numpy(past, self._session.device, self._session.device_id))
        return tensors

    def _begin(self, longest: int, length: int) -> int:
        return longest - length if self._pads_left else 0

    def _save(self, slot: int, *, leaves: bool = True) -> None:
        """Copies the new positions of a slot's whole group to host memory. With `leaves`, the group dissolves."""
        group = self._group_of.get(slot)
        if group is None:
            return
        # Positions that a run computed but that were never committed do not belong to the sequence.
        ends = [min(length, self.length(member)) for member, length in zip(group.slots, group.lengths, strict=True)]
        if ends != group.saved:
            longest = group.num_padded
            for index, tensor in enumerate(group.tensors):
                rows, values = self._memory.tensor(index), tensor.numpy()
                for at, (member, start, end) in enumerate(zip(group.slots, group.saved, ends, strict=True)):
                    begin = self._begin(longest, group.lengths[at])
                    rows[member, :, start:end] = values[at, :, begin + start : begin + end]
            group.saved = ends
        if leaves:
            for member in group.slots:
                del self._group_of[member]
