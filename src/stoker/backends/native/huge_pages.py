"""Requests huge pages (2 MiB) from the kernel: each pass reads all weights, which small pages slow down by a third."""

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
    """Requests huge pages for a whole mapping before its first use. A kernel that has none for it ignores this."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)


def forget_small_pages(file: int) -> None:
    """Drops a written and synced file from the page cache, where it is in small pages because it was written in pieces.

    A later mapping then reads it back in huge pages, if the file system supports them.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def lies_in_small_pages(memory: mmap.mmap, smaps: Path = _SMAPS, enabled: Path = _ENABLED) -> bool:
    """Whether a mapped file with requested huge pages is in small pages, although anonymous memory can have huge pages.

    Reads the beginning of the file. On Linux only some file systems support huge pages, and only in newer kernels.

    Args:
        memory: the mapping; false if it is smaller than two huge pages.
        smaps: the kernel's file about the mappings of this process.
        enabled: the kernel's setting of huge pages for anonymous memory.
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
    """KiB in huge pages of the mapping that begins at an address; None = there is no such mapping or no such number.

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
