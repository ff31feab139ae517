"""Reads and writes the file of one block, with direct I/O (without the page cache) where possible.

The page cache would cost a copy of every byte, on a core that computes, and the RAM tier already caches the disk.
With direct I/O, the disk accesses the memory of blocks itself, because blocks are page-aligned. Small blocks, and
blocks on file systems without direct I/O, are read and written the usual way, with the same bytes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from stat import S_ISREG

from stoker.cache.arena import Arena, new_memory
from stoker.cache.block_file import (
    ALIGNED,
    ALIGNED_FROM_BYTES,
    HEADER_BYTES,
    PAGE_BYTES,
    BadBlockFile,
    Header,
    check_padding,
    decode_header,
    encode_header,
)
from stoker.core.tiers import KVBytes

if sys.platform == "linux":
    from fcntl import F_SETFL, fcntl

_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_AT_ONCE_BYTES = 64 * 2**20
"""Maximum size of a file that is read in one go, before its header is checked."""
_UNABLE = errno.EINVAL, errno.EOPNOTSUPP
"""Errors of direct I/O for unaligned memory, disks with larger sectors, and compressed files (as on NTFS)."""


def create(path: str) -> FileIO:
    """A new file that only this user can read.

    Raises:
        OSError: the file cannot be created, or exists.
    """
    return FileIO(os.open(path, _CREATING, 0o600), "wb")


@contextmanager
def opened(path: Path | str) -> Generator[tuple[FileIO, int]]:
    """Opens the file of a block; yields it and its size. Reading anything but a regular file could block forever.

    Raises:
        BadBlockFile: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    with FileIO(os.open(path, _READING), "rb") as file:
        stat = os.fstat(file.fileno())
        if not S_ISREG(stat.st_mode):
            raise BadBlockFile("no plain file")
        yield file, stat.st_size


class BlockFiles:
    """Reads and writes block files, one at a time. Not thread-safe.

    Args:
        arena: allocator of the memory for blocks that are read.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        pages = memoryview(new_memory(2 * PAGE_BYTES))
        self._first, self._last = pages[:PAGE_BYTES], pages[PAGE_BYTES:]
        """Buffers for the first and the last page of an aligned file."""

    def write(self, file: FileIO, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        """Writes a block into an empty file; returns the size of the file.

        Raises:
            OSError: the disk is full, or fails.
        """
        content = memoryview(state).cast("B")
        if len(content) < ALIGNED_FROM_BYTES:
            parts = [memoryview(encode_header(fingerprint, key, state)), content]
            write_all(file, parts)
            return sum(map(len, parts))
        parts = self._pages_of(encode_header(fingerprint, key, state, ALIGNED), content)
        if _set_direct(file, is_on=True):
            _write_direct(file, parts)
        else:
            write_all(file, parts)
        return sum(map(len, parts))

    def read(self, path: Path | str, fingerprint: bytes, key: bytes) -> memoryview:
        """Reads a block.

        Raises:
            BadBlockFile: the file is damaged, or is not this block.
            OSError: the file does not exist, or cannot be read.
        """
        with opened(path) as (file, size):
            found = self._read_direct(file, size) or self._read_twice(file, size, fingerprint, key)
        header, state = found
        header.check_names(fingerprint, key)
        header.check_content(state)
        return state.toreadonly()

    def _pages_of(self, head: bytes, content: memoryview) -> list[memoryview]:
        """The content of an aligned file as parts of whole pages; only the first and the last page are copied."""
        whole = len(content) // PAGE_BYTES * PAGE_BYTES
        self._first[:] = head + bytes(PAGE_BYTES - len(head))
        rest = bytes(content[whole:])
        if not rest:
            return [self._first, content]
        self._last[:] = rest + bytes(PAGE_BYTES - len(rest))
        return [self._first, content[:whole], self._last]

    def _read_direct(self, file: FileIO, size: int) -> tuple[Header, memoryview] | None:
        """Reads a whole aligned file with direct I/O. None: that is not possible."""
        can_be = size % PAGE_BYTES == 0 and ALIGNED_FROM_BYTES < size <= _AT_ONCE_BYTES
        if not can_be or not _set_direct(file, is_on=True):
            return None
        memory = self._arena.take(size - PAGE_BYTES, at_once=False)
        try:
            num_bytes = os.readv(file.fileno(), [self._first, memory])
        except OSError as error:
            if error.errno not in _UNABLE:
                raise
            num_bytes = 0
        if num_bytes == size:
            header = decode_header(self._first[:HEADER_BYTES], size)
            if header.begin == PAGE_BYTES:
                check_padding(self._first[HEADER_BYTES:], memory[header.num_bytes :])
                return header, memory[: header.num_bytes]
        _set_direct(file, is_on=False)
        return None

    def _read_twice(self, file: FileIO, size: int, fingerprint: bytes, key: bytes) -> tuple[Header, memoryview]:
        """Reads and checks the header before memory is allocated, and then reads the rest."""
        file.seek(0)
        header = decode_header(file.read(HEADER_BYTES), size)
        header.check_names(fingerprint, key)
        state = self._arena.take(header.num_bytes, at_once=False)
        padding = file.read(header.begin - HEADER_BYTES)
        read_all(file, state)
        check_padding(padding, file.read(PAGE_BYTES))
        return header, state


def _set_direct(file: FileIO, *, is_on: bool) -> bool:
    """Switches direct I/O on or off. False: the system or the file system does not support it."""
    if sys.platform != "linux":
        return False
    try:
        fcntl(file.fileno(), F_SETFL, os.O_DIRECT if is_on else 0)
    except OSError:
        return False
    return True


def _write_direct(file: FileIO, parts: Sequence[memoryview]) -> None:
    """Writes all parts in one call if possible, because each direct write waits for the disk."""
    try:
        num_bytes = os.writev(file.fileno(), parts)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        num_bytes = 0
    if num_bytes < sum(map(len, parts)):
        _set_direct(file, is_on=False)
        file.seek(0)
        write_all(file, parts)


def write_all(file: FileIO, parts: Sequence[memoryview]) -> None:
    """Writes the parts one after the other. The system takes at most two gigabytes per call.

    Raises:
        OSError: the disk is full, or fails.
    """
    for part in parts:
        left = part
        while left:
            left = left[file.write(left) :]


def read_all(file: FileIO, content: memoryview) -> None:
    """Fills memory from a file. If the file was truncated meanwhile, the rest of the memory stays arbitrary, which the
    checksum reveals.

    Raises:
        OSError: the disk fails.
    """
    left = content
    while left and (num_bytes := file.readinto(left)):  # the system gives at most two gigabytes at once
        left = left[num_bytes:]
