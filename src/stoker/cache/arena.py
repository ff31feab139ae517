"""Memory for blocks that are read from disk. It knows neither blocks nor files.

A block is a few hundred kilobytes, and memory that nobody has touched yet costs more than reading a file that is in the
system's own cache: the kernel empties it page by page. So it is taken in large pieces, which are asked to be of huge
pages, and handed out in parts. A piece is given back when none of its parts is used any more.
"""

from __future__ import annotations

import mmap

PIECE_BYTES = 8 * 2**20
"""Of two megabytes each consist huge pages."""
_ALIGNMENT = 64


class Arena:
    """Not safe to use from several threads."""

    def __init__(self) -> None:
        self._rest = memoryview(b"")

    def take(self, num_bytes: int) -> memoryview:
        """So many writable bytes, with zeros; they are given back when nobody refers to them any more."""
        if num_bytes > len(self._rest):
            self._rest = memoryview(_piece(max(num_bytes, PIECE_BYTES)))
        taken, behind = self._rest[:num_bytes], -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._rest = self._rest[behind:]
        return taken


def _piece(num_bytes: int) -> mmap.mmap:
    piece = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        piece.madvise(mmap.MADV_HUGEPAGE)
    return piece
