"""Host memory of KV that ONNX Runtime reads and writes: one row per sequence, committed only as it is used.

```
one tensor      row 0                   row 1                   …
                head 0      head 1      head 0      head 1
                [ used | … ][ used | … ][ used | … ][ used | … ]    each head has room for the longest sequence
```

Rows have equal strides, so adjacent rows are a batch that attention can update in place. Positions after a sequence's
end are reserved address space: the system commits a page when it is first written; when rows become shorter, their
pages are returned (vAttention, arXiv:2405.04437, does the same on GPUs).
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
"""The capacity of a head is a multiple of this many positions: whole pages, if a position has at least 64 bytes."""

_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)

KVArray = NDArray[np.generic]


class _Block:
    """The memory of all KV tensors of one shape, `(tensors, rows, heads, positions, size)`."""

    def __init__(self, num_tensors: int, num_rows: int, capacity: int, tensor: KVTensor, kind: np.dtype[np.generic]):
        shape = (num_tensors, num_rows, tensor.num_heads, capacity, tensor.head_size)
        self._map = _reserve(int(np.prod(shape)) * kind.itemsize)
        self.array: KVArray = np.frombuffer(self._map, dtype=kind).reshape(shape)

    def release(self, row: int, start: int, end: int) -> None:
        """Returns the whole pages of these positions to the system; they read as zeros afterwards."""
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
    """The keys and values of all layers and sequences of one model, in rows.

    Args:
        tensors: the KV tensors of the graph.
        kind: type of their elements.
        num_rows: number of rows (sequences).
        max_tokens: length of the longest sequence, in tokens.
        kv_tokens: positions that all rows hold together, at most; `trim` returns memory that was committed beyond.

    Raises:
        ResourceExhausted: the system does not have enough address space.
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
        """Number of positions that a row has space for."""
        self._limit = kv_tokens + spare_kv_tokens(num_rows)
        self._touched = [0] * num_rows
        """For each row the number of positions whose memory may be committed."""
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
        """Number of positions whose memory may be committed, in all rows together."""
        return sum(self._touched)

    def tensor(self, index: int) -> KVArray:
        """A view of one KV tensor of all rows, `(rows, heads, positions, size)`."""
        block, at = self._places[index]
        return self._blocks[block].array[at]

    def length(self, row: int) -> int:
        """Number of positions that a row holds."""
        return self._lengths[row]

    def set_length(self, row: int, length: int) -> None:
        """Sets the number of positions that a row holds; new positions have been written."""
        self._lengths[row] = length
        self._touched[row] = max(self._touched[row], length)

    def trim(self) -> None:
        """Returns memory after the rows' ends to the system, if too much is committed. Its content is lost."""
        if self.num_touched <= self._limit:
            return
        for row, (touched, length) in enumerate(zip(self._touched, self._lengths, strict=True)):
            if touched > length:
                for block in self._blocks:
                    block.release(row, length, touched)
                self._touched[row] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of row `source` to row `target`."""
        for block in self._blocks:
            block.array[:, target, :, :length] = block.array[:, source, :, :length]
        self.set_length(target, length)

    def swap(self, one: int, other: int) -> None:
        """Exchanges the content of two rows."""
        lengths = self._lengths[one], self._lengths[other]
        short, long = (one, other) if lengths[0] <= lengths[1] else (other, one)
        num_kept, num_moved = sorted(lengths)
        for tensor in (tensor for block in self._blocks for tensor in block.array):
            kept = tensor[short, :, :num_kept].copy()  # stays in a core's cache
            tensor[short, :, :num_moved] = tensor[long, :, :num_moved]
            tensor[long, :, :num_kept] = kept
        self.set_length(short, num_moved)
        self._lengths[one], self._lengths[other] = lengths[1], lengths[0]

    def read(self, row: int, start: int, end: int) -> bytes:
        """A copy of positions `start … end-1` of a row, in the order tensors, heads, positions, elements."""
        return b"".join(block.array[:, row, :, start:end].tobytes() for block in self._blocks)

    def write(self, row: int, start: int, end: int, state: memoryview) -> bool:
        """Appends bytes that `read` returned. False if the bytes are not of these positions; nothing changes then."""
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
    """Tokens of memory, at most, that partly filled pages need beyond the size of the KV pool."""
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
        # With huge pages, the first position of every head would commit 2 MiB and exhaust the memory.
        with suppress(OSError):
            found.madvise(mmap.MADV_NOHUGEPAGE)
    return found
