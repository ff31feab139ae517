"""Asking the kernel for pages of 2 MiB: weights are read once a pass, which small pages slow down by a third."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """A wish for a whole mapping, before it is touched. A kernel that has none, or none for such a file, ignores it."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)


def forget_small_pages(file: int) -> None:
    """Drops a written and synced file from the page cache: written in pieces, it lies there in small pages.

    Whoever maps it then reads it back in large ones, where the file system has them.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
