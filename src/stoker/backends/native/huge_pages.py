"""Requests huge pages (2 MiB) from the kernel: each pass reads all weights, which small pages slow down by a third."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

_HUGE_BYTES = 2 << 20
_READ_BYTES = 4 << 30
"""Maximum size of the beginning of a file that is read and checked."""
_PIECE_BYTES = 8 << 20
_ENOUGH = 0.8
_SMAPS, _ENABLED = Path("/proc/self/smaps"), Path("/sys/kernel/mm/transparent_hugepage/enabled")


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Requests huge pages for a whole mapping before its first use. A kernel that has none for it ignores this."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)


def forget_small_pages(file: int, start: int = 0, num_bytes: int = 0) -> None:
    """Drops a written and synced file from the page cache, where it is in small pages because it was written in pieces.

    A later mapping then reads it back in huge pages, if the file system supports them. Pages that a process has mapped
    stay.

    Args:
        file: its number.
        start: offset of the part that is dropped.
        num_bytes: size of that part; 0 = up to the end.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, start, num_bytes, os.POSIX_FADV_DONTNEED)


def lies_in_small_pages(memory: mmap.mmap, smaps: Path = _SMAPS, enabled: Path = _ENABLED) -> bool:
    """Whether less than 80 % of a mapping is in huge pages, although anonymous memory can have huge pages.

    Reads up to 4 GiB from the beginning. On Linux only some file systems support huge pages, and only in newer kernels.

    Args:
        memory: the mapping, with requested huge pages; false if it has no room for one.
        smaps: the kernel's file about the mappings of this process.
        enabled: the kernel's setting of huge pages for anonymous memory.
    """
    try:
        may_have = "[never]" not in enabled.read_text()
    except OSError:
        return False
    return may_have and measured_share(memory, smaps) < _ENOUGH


def read_in_huge_pages(file: int) -> None:
    """Reads up to 4 GiB of a file into the page cache, and pieces that are there in small pages again.

    Ends at the first piece that reading again does not improve: a process has mapped it, memory is fragmented, or the
    file system has no huge pages. So a call reads at most one piece in vain.
    """
    if not lies_in_small_pages(_mapped(file, 0, 0)):
        return
    size = os.fstat(file).st_size
    for start in range(0, min(size, _READ_BYTES), _PIECE_BYTES):
        part = start, min(_PIECE_BYTES, size - start)
        before = _share_of(file, *part)
        if before < _ENOUGH:
            forget_small_pages(file, *part)
            if _share_of(file, *part) <= before:
                return
    if size > _READ_BYTES and _share_of(file, _READ_BYTES, min(_PIECE_BYTES, size - _READ_BYTES)) < _ENOUGH:
        forget_small_pages(file, _READ_BYTES)  # the rest, of which only this piece is measured


def _mapped(file: int, start: int, num_bytes: int) -> mmap.mmap:
    """A mapping that ends with its last reference. The traceback of Ctrl-C may have one, so `close` could fail."""
    memory = mmap.mmap(file, num_bytes, access=mmap.ACCESS_READ, offset=start)
    prefer_huge_pages(memory)
    return memory


def _share_of(file: int, start: int, num_bytes: int) -> float:
    return measured_share(_mapped(file, start, num_bytes))


def measured_share(memory: mmap.mmap, smaps: Path = _SMAPS) -> float:
    """Reads the beginning of a mapping. See `huge_share`; 1 if the kernel does not say it."""
    values = np.frombuffer(memory, dtype=np.uint8)[:_READ_BYTES]
    for start in range(0, len(values), _PIECE_BYTES):
        values[start : start + _PIECE_BYTES : mmap.PAGESIZE].sum()  # numpy releases the GIL
    address = values.__array_interface__["data"][0]
    try:
        found = _huge_kib(smaps.read_text(), address)
    except OSError:
        return 1
    return 1 if found is None else huge_share(found << 10, address, len(values))


def huge_share(huge_bytes: int, address: int, num_bytes: int) -> float:
    """The part of memory that is in huge pages, of what can be: huge pages begin at multiples of their size.

    >>> huge_share(2 << 20, address=5 << 20, num_bytes=6 << 20)  # from 6 MiB to 10 MiB
    0.5
    >>> huge_share(0, address=5 << 20, num_bytes=2 << 20)  # there is no room for one
    1
    """
    possible = (address + num_bytes) // _HUGE_BYTES - -(-address // _HUGE_BYTES)
    return huge_bytes / (possible * _HUGE_BYTES) if possible > 0 else 1


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
