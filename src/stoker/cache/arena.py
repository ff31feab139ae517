"""An allocator of memory for KV blocks that are exported or read from disk. It knows neither blocks nor files.

A block has a few hundred kilobytes. Fresh memory costs five times as much as filling it, because the kernel zeroes it
page by page. So memory is reused, and a fresh part is requested from the kernel as a whole. Parts of one size come from
the same pieces: a small slab allocator (Bonwick, 1994). Huge pages are not requested: they gain nothing for reused
memory, and fresh ones cost most in a virtual machine that returns its free memory to the host (docs/lab).

```
size 720 KiB    piece [ lent | lent | free | lent | … ]    piece [ free | free | not touched yet | … ]
size 736 KiB    piece [ lent | free | … ]
```
"""

from __future__ import annotations

import mmap
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 8 * 2**20
_POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE` of Linux 5.14 and later, for which not every Python has a name."""
_SPARE_BYTES = 64 * 2**20
"""Maximum unused memory that is kept, over all sizes; and maximum memory of one size that is prepared in advance."""
_MAX_SPARE_PIECES = 32
"""Maximum number of unused pieces. Pieces of rarely used sizes take address space, though little of it is touched."""
_TOUCHED_AT_A_TIME = 2**21
"""Number of bytes to prepare in one call, which takes about half a millisecond."""


class Arena:
    """A pool of memory for blocks of any size. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards everything but `_returned`."""
        self._pieces: dict[int, list[_Piece]] = {}
        """Pieces with a free part, by part size. The last piece of a size is used first."""
        self._spare: dict[_Piece, None] = {}
        """Pieces without lent parts, the longest unused first."""
        self._loans: dict[int, _Loan] = {}
        """Weak references to lent parts, by identity; they must live until their parts are returned."""
        self._num_lent: dict[int, int] = {}
        """Number of lent parts, by part size."""
        self._returned: deque[_Loan] = deque()
        """Loans of parts that are free again. Any thread may append at any time, even while it is in a method here."""

    def take(self, num_bytes: int, *, at_once: bool = True) -> memoryview:
        """Writable, uninitialized memory of `num_bytes`; returned to the arena when its last reference is gone.

        Args:
            at_once: have the kernel provide fresh memory in one call; the GIL is held meanwhile.
        """
        if not num_bytes:
            return memoryview(b"")
        size = _whole_pages(num_bytes)
        with self._lock:
            self._collect()
            pieces = self._pieces.setdefault(size, [])
            if not pieces:
                pieces.append(_Piece(size))
            piece = pieces[-1]
            offset = piece.take(at_once=at_once)
            self._spare.pop(piece, None)
            if not piece.free:
                pieces.pop()
            # Views of the returned view reference this array, not the view itself.
            part = np.frombuffer(piece.memory, np.uint8, num_bytes, offset)
            loan = _Loan(part, self._returned.append)
            loan.piece, loan.offset = piece, offset
            self._loans[id(loan)] = loan
            self._num_lent[size] = self._num_lent.get(size, 0) + 1
        return part.data

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        """Prepares a little memory for parts of this size: in total as much as is lent now, at most `max_bytes`.

        Called while the engine is idle. False: nothing was left to do.
        """
        size = _whole_pages(num_bytes)
        with self._lock:
            self._collect()
            pieces = self._pieces.setdefault(size, [])
            limit = min(self._num_lent.get(size, 0) * size, max_bytes, _SPARE_BYTES)
            num_wanted = limit // size - sum(piece.num_ready for piece in pieces)
            if num_wanted <= 0:
                return False
            fresh = next((piece for piece in reversed(pieces) if piece.has_untouched), None)
            if fresh is None:
                pieces.insert(0, fresh := _Piece(size))
            fresh.touch(min(max(1, _TOUCHED_AT_A_TIME // size), num_wanted))
            if fresh.is_free:
                self._keep(fresh)
        return True

    def trim(self) -> None:
        """Gives unneeded memory back to the system, as `take` also does."""
        with self._lock:
            self._collect()

    @property
    def num_bytes(self) -> int:
        """Memory that the arena holds, whether lent or not."""
        with self._lock:
            pieces = {id(loan.piece): loan.piece for loan in self._loans.values()}
            pieces.update((id(piece), piece) for pieces in self._pieces.values() for piece in pieces)
        return sum(len(piece.memory) for piece in pieces.values())

    def _collect(self) -> None:
        while self._returned:
            loan = self._returned.popleft()
            del self._loans[id(loan)]
            piece = loan.piece
            self._num_lent[piece.size] -= 1
            pieces = self._pieces.setdefault(piece.size, [])
            if not piece.free:
                pieces.append(piece)
            piece.free.append(loan.offset)
            if piece.is_free:
                self._keep(piece)

    def _keep(self, piece: _Piece) -> None:
        """Adds a piece without lent parts to the spare ones, and frees the longest unused beyond the limits."""
        self._spare.pop(piece, None)
        self._spare[piece] = None
        num_bytes = sum(spare.num_touched_bytes for spare in self._spare)
        while num_bytes > _SPARE_BYTES or len(self._spare) > _MAX_SPARE_PIECES:
            oldest = next(iter(self._spare))
            del self._spare[oldest]
            self._pieces[oldest.size].remove(oldest)
            num_bytes -= oldest.num_touched_bytes


class _Piece:
    """A mapping of anonymous memory, divided into parts of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = new_memory(max(PIECE_BYTES, size))
        self.num_parts = len(self.memory) // size
        self.free = [index * size for index in reversed(range(self.num_parts))]
        """Offsets of the free parts, taken from the end: recently used ones first, then unused ones from the lowest."""
        self._num_touched = 0
        """Number of leading parts that have been used or prepared."""

    @property
    def num_ready(self) -> int:
        return len(self.free) - (self.num_parts - self._num_touched)

    @property
    def num_touched_bytes(self) -> int:
        return self._num_touched * self.size

    @property
    def has_untouched(self) -> bool:
        return self._num_touched < self.num_parts

    def take(self, *, at_once: bool) -> int:
        """Takes a free part; returns its offset."""
        if not self.num_ready:
            if at_once:
                self.touch(1)
            else:
                self._num_touched += 1
        return self.free.pop()

    def touch(self, num_parts: int) -> None:
        """Has the kernel provide memory for up to `num_parts` more parts."""
        begin, end = self._num_touched, min(self._num_touched + num_parts, self.num_parts)
        self._num_touched = end
        if sys.platform == "linux":
            with suppress(OSError):  # an older kernel
                self.memory.madvise(_POPULATE_WRITE, begin * self.size, (end - begin) * self.size)

    @property
    def is_free(self) -> bool:
        return len(self.free) == self.num_parts


class _Loan(weakref.ref[NDArray[np.uint8]]):
    """Returns a part to the arena when its last reference is gone."""

    __slots__ = ("offset", "piece")
    piece: _Piece
    offset: int


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def new_memory(num_bytes: int) -> mmap.mmap:
    """Fresh anonymous memory, page-aligned and zeroed."""
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    # Python's default is shared memory, which costs more than private memory.
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
