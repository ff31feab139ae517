"""Asking the kernel for pages of 2 MiB: weights are read once a pass, which small pages slow down by a third."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

_HUGE_BYTES = 2 << 20
_PROBED_BYTES = 32 << 20
_SMAPS, _ENABLED = Path("/proc/self/smaps"), Path("/sys/kernel/mm/transparent_hugepage/enabled")


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """A wish for a whole mapping, before it is touched. A kernel that has none, or none for such a file, ignores it."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)


def forget_small_pages(file: int) -> None:
    """Drops a written and synced file from the page cache: written in pieces, it lies there in small pages.

    A later mapping then reads it back in large pages, where the file system has them.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def lies_in_small_pages(memory: mmap.mmap, smaps: Path = _SMAPS, enabled: Path = _ENABLED) -> bool:
    """Whether a mapped file, asked for in huge pages, comes in small ones, although other memory would have huge ones.

    Reads the beginning of the file. On Linux only some file systems have huge pages, and only in newer kernels.

    Args:
        memory: the mapping, larger than a huge page; of anything smaller the answer is no.
        smaps: what the kernel says about the mappings of this process.
        enabled: what it says about huge pages for memory.
    """
    if len(memory) < 2 * _HUGE_BYTES:
        return False
    values = np.frombuffer(memory, dtype=np.uint8)
    values[: min(len(values), _PROBED_BYTES) : mmap.PAGESIZE].sum()
    try:
        may_have = "[never]" not in enabled.read_text()
        said = smaps.read_text()
    except OSError:
        return False
    return may_have and _huge_kib(said, values.__array_interface__["data"][0]) == 0


def _huge_kib(smaps: str, address: int) -> int | None:
    """Of the mapping that begins at an address what lies in huge pages; None = it is not there, or nothing is said.

    >>> _huge_kib("7f00-7f10 r--s 00010000 fe:00 12 /x\\nRss: 4 kB\\nFilePmdMapped:    2048 kB\\n", 0x7f00)
    2048
    """
    _, found, rest = f"\n{smaps}".partition(f"\n{address:x}-")
    for line in rest.splitlines()[1:] if found else ():
        name, _, value = line.partition(":")
        if name == "FilePmdMapped":
            return int(value.split()[0])
        if " " in name:
            return None  # the next mapping
    return None
