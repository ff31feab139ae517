"""Memory for blocks that are exported or read from disk. It knows neither blocks nor files.

A block is a few hundred kilobytes, and memory that was never touched costs five times what filling it does: the
kernel empties it page by page. So what is given back is handed out again, and a part is had from the kernel as a whole.
Parts of one size lie in one piece: a slab allocator (Bonwick, 1994), in small. Huge pages are not asked for: once
memory is used again they gain nothing, and new ones cost most of all where a machine is a guest that gives its free
memory back to its host (docs/lab).

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
"""Linux 5.14 and later; not every Python has a name for it."""
_SPARE_BYTES = 64 * 2**20
"""Maximum unused memory that is kept, over all sizes; and maximum memory of one size that is prepared in advance."""
_MAX_SPARE_PIECES = 32
"""Of sizes that are asked for only once, little of each piece is memory, but all of it is promised by the system."""
_TOUCHED_AT_A_TIME = 2**21
"""Memory to prepare in one go, in about half a millisecond."""


class Arena:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards everything but `_returned`."""
        self._pieces: dict[int, list[_Piece]] = {}
        """By the size of their parts: those with a free one. The last one is used first."""
        self._spare: dict[_Piece, None] = {}
        """Pieces of which nothing is lent, the longest unused first."""
        self._loans: dict[int, _Loan] = {}
        """Alive for as long as what they are of; by their identity."""
        self._num_lent: dict[int, int] = {}
        """By size."""
        self._returned: deque[_Loan] = deque()
        """Appended to at any moment by any thread, also by one that is in here."""

    def take(self, num_bytes: int, *, at_once: bool = True) -> memoryview:
        """Writable, uninitialized memory of `num_bytes`; returned to the arena when its last reference is gone.

        Args:
            at_once: new memory is had from the kernel as a whole; meanwhile no other thread runs Python.
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
            # Views of a view hold on to this array, and not to the view that is returned.
            part = np.frombuffer(piece.memory, np.uint8, num_bytes, offset)
            loan = _Loan(part, self._returned.append)
            loan.piece, loan.offset = piece, offset
            self._loans[id(loan)] = loan
            self._num_lent[size] = self._num_lent.get(size, 0) + 1
        return part.data

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        """Makes a little memory ready for parts of this size, as much as is lent of them and at most `max_bytes`.

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
        """Nothing of it is lent: of all such pieces, those that were used longest ago are too many."""
        self._spare.pop(piece, None)
        self._spare[piece] = None
        num_bytes = sum(spare.num_touched_bytes for spare in self._spare)
        while num_bytes > _SPARE_BYTES or len(self._spare) > _MAX_SPARE_PIECES:
            oldest = next(iter(self._spare))
            del self._spare[oldest]
            self._pieces[oldest.size].remove(oldest)
            num_bytes -= oldest.num_touched_bytes


class _Piece:
    """Memory of the system, in parts of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = new_memory(max(PIECE_BYTES, size))
        self.num_parts = len(self.memory) // size
        self.free = [index * size for index in reversed(range(self.num_parts))]
        """Where the free parts begin. What was used lately is last, then what was never used, from the lowest on."""
        self._num_touched = 0
        """Parts, from the first on."""

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
        """Where a part begins that was free."""
        if not self.num_ready:
            if at_once:
                self.touch(1)
            else:
                self._num_touched += 1
        return self.free.pop()

    def touch(self, num_parts: int) -> None:
        """Has the kernel give memory for so many more parts, as far as there are."""
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
    """Whole pages of the system."""
    if sys.platform == "win32":
        return mmap.mmap(-1, num_bytes)
    # Memory that could be shared with other processes, which Python asks for by itself, costs more.
    return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
