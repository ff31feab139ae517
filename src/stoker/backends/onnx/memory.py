"""KV where ONNX Runtime reads and writes it: one row per sequence, and only what is used takes memory.

```
one tensor      row 0                   row 1                   …
                head 0      head 1      head 0      head 1
                [ used | … ][ used | … ][ used | … ][ used | … ]    each head has room for the longest sequence
```

Rows lie at equal distances, so any run of them is a batch that attention works on in place. What is beyond a
sequence's end is address space only: the system gives a page when it is first written, and takes it back when a row
has become shorter (vAttention, arXiv:2405.04437, does the same on GPUs).
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from stoker.backends.onnx.signature import KVTensor
from stoker.errors import ResourceExhausted

GRANULE = 64
"""A head's room is a multiple of so many positions: whole pages, if a position has at least 64 bytes."""

_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)

KVArray = NDArray[np.generic]


class _Block:
    """All tensors of one shape, `(tensors, rows, heads, positions, size)`."""

    def __init__(self, num_tensors: int, num_rows: int, capacity: int, tensor: KVTensor, kind: np.dtype[np.generic]):
        shape = (num_tensors, num_rows, tensor.num_heads, capacity, tensor.head_size)
        self._map = _reserve(int(np.prod(shape)) * kind.itemsize)
        self.array: KVArray = np.frombuffer(self._map, dtype=kind).reshape(shape)

    def release(self, row: int, start: int, end: int) -> None:
        """Gives back whole pages of these positions; they read as zeros afterwards."""
        if not hasattr(self._map, "madvise"):
            return
        tensors, _, heads, _, _ = self.array.shape
        strides = self.array.strides
        for tensor in range(tensors):
            for head in range(heads):
                base = tensor * strides[0] + row * strides[1] + head * strides[2]
                first = -(-(base + start * strides[3]) // mmap.PAGESIZE) * mmap.PAGESIZE
                last = (base + end * strides[3]) // mmap.PAGESIZE * mmap.PAGESIZE
                if first < last:
                    self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


class KVMemory:
    """Rows of keys and values of all layers.

    Args:
        tensors: what a graph takes and gives.
        kind: of their elements.
        num_rows: sequences.
        max_tokens: longest sequence.
        kv_tokens: positions that all rows together hold; what was touched beyond is given back.

    Raises:
        ResourceExhausted: the system has not so much address space.
    """

    def __init__(
        self,
        tensors: Sequence[KVTensor],
        kind: np.dtype[np.generic],
        *,
        num_rows: int,
        max_tokens: int,
        kv_tokens: int,
    ) -> None:
        self.capacity = -(-max_tokens // GRANULE) * GRANULE
        """Positions that a row has room for."""
        self._limit = kv_tokens + spare_kv_tokens(num_rows)
        self._touched = [0] * num_rows
        """How much of each row has memory, in positions."""
        self._lengths = [0] * num_rows
        shapes = [(tensor.num_heads, tensor.head_size) for tensor in tensors]
        self._blocks: list[_Block] = []
        self._places: list[tuple[int, int]] = [(0, 0)] * len(tensors)
        for number, shape in enumerate(dict.fromkeys(shapes)):
            members = [index for index, other in enumerate(shapes) if other == shape]
            self._blocks.append(_Block(len(members), num_rows, self.capacity, tensors[members[0]], kind))
            for at, index in enumerate(members):
                self._places[index] = (number, at)

    @property
    def num_touched(self) -> int:
        """Positions that have memory, in all rows together."""
        return sum(self._touched)

    def tensor(self, index: int) -> KVArray:
        """One tensor of all rows, `(rows, heads, positions, size)`: a view."""
        block, at = self._places[index]
        return self._blocks[block].array[at]

    def length(self, row: int) -> int:
        """Positions that a row holds."""
        return self._lengths[row]

    def set_length(self, row: int, length: int) -> None:
        """A row holds its first `length` positions now; those that are new have been written."""
        self._lengths[row] = length
        self._touched[row] = max(self._touched[row], length)

    def trim(self) -> None:
        """Gives memory back if rows that were longer hold too much. What is beyond a row's end is lost."""
        if self.num_touched <= self._limit:
            return
        for row, (touched, length) in enumerate(zip(self._touched, self._lengths, strict=True)):
            if touched > length:
                for block in self._blocks:
                    block.release(row, length, touched)
                self._touched[row] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """The first positions of one row become those of another."""
        for block in self._blocks:
            block.array[:, target, :, :length] = block.array[:, source, :, :length]
        self.set_length(target, length)

    def swap(self, one: int, other: int) -> None:
        """Two rows change places."""
        lengths = self._lengths[one], self._lengths[other]
        short, long = (one, other) if lengths[0] <= lengths[1] else (other, one)
        num_kept, num_moved = sorted(lengths)
        for tensor in (tensor for block in self._blocks for tensor in block.array):
            kept = tensor[short, :, :num_kept].copy()  # small enough to stay in a core's cache
            tensor[short, :, :num_moved] = tensor[long, :, :num_moved]
            tensor[long, :, :num_kept] = kept
        self.set_length(short, num_moved)
        self._lengths[one], self._lengths[other] = lengths[1], lengths[0]

    def read(self, row: int, start: int, end: int) -> bytes:
        """Some positions of a row: tensors, heads, positions, sizes, in this order."""
        return b"".join(block.array[:, row, :, start:end].tobytes() for block in self._blocks)

    def write(self, row: int, start: int, end: int, state: memoryview) -> bool:
        """Appends what `read` gave; false if these bytes are something else."""
        at, parts = 0, list[KVArray]()
        for block in self._blocks:
            shape = block.array[:, row, :, start:end].shape
            size = int(np.prod(shape)) * block.array.itemsize
            if at + size > len(state):
                return False
            parts.append(np.frombuffer(state[at : at + size], dtype=block.array.dtype).reshape(shape))
            at += size
        if at != len(state):
            return False
        for block, part in zip(self._blocks, parts, strict=True):
            block.array[:, row, :, start:end] = part
        self.set_length(row, end)
        return True


def spare_kv_tokens(num_rows: int) -> int:
    """What whole pages take beyond the cells of the pool, at most, in tokens."""
    return GRANULE * num_rows


def _reserve(num_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    try:
        found = mmap.mmap(-1, num_bytes, flags=flags)
    except (OSError, ValueError, OverflowError, MemoryError) as error:
        raise ResourceExhausted(
            f"the system has no {num_bytes >> 20} MiB of address space for keys and values: {error}. "
            "A smaller --ctx-size or --parallel needs less.",
            needed_bytes=num_bytes,
        ) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A huge page would be given for the first position of every head, and fill the memory.
        with suppress(OSError):
            found.madvise(mmap.MADV_NOHUGEPAGE)
    return found
