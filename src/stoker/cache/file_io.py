"""The bytes of one block's file: written and read past the system's page cache where that can be done.

The cache costs a copy of every byte, on a core that computes, and the disk itself can read and write
the memory of blocks: they lie in whole pages. And there is a cache in front of the disk already: the tier in memory. On
a file system that cannot do it, and for small blocks, everything goes the usual way; the bytes are the same.
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
"""A file of this size may be read before it has said that it is a block."""
_UNABLE = errno.EINVAL, errno.EOPNOTSUPP
"""Memory that does not begin with a page, or a disk of larger sectors; a file that the system compresses, as NTFS."""


def create(path: str) -> FileIO:
    """A new file that only this user can read.

    Raises:
        OSError: it cannot be created, or is there.
    """
    return FileIO(os.open(path, _CREATING, 0o600), "wb")


@contextmanager
def opened(path: Path | str) -> Generator[tuple[FileIO, int]]:
    """A block's file and its size. What is no plain file is not looked into: that could take for ever.

    Raises:
        BadBlockFile: it is none.
        OSError: the disk refuses.
    """
    with FileIO(os.open(path, _READING), "rb") as file:
        stat = os.fstat(file.fileno())
        if not S_ISREG(stat.st_mode):
            raise BadBlockFile("no plain file")
        yield file, stat.st_size


class BlockFiles:
    """Reads and writes one file at a time.

    Args:
        arena: where what is read lies.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        pages = memoryview(new_memory(2 * PAGE_BYTES))
        self._first, self._last = pages[:PAGE_BYTES], pages[PAGE_BYTES:]
        """Buffers for the first and the last page of an aligned file."""

    def write(self, file: FileIO, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        """Writes a block into an empty file; returns how long that is.

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
        """A block.

        Raises:
            BadBlockFile: there is a file, but not with this block.
            OSError: there is none, or the disk refuses.
        """
        with opened(path) as (file, size):
            found = self._read_direct(file, size) or self._read_twice(file, size, fingerprint, key)
        header, state = found
        header.check_names(fingerprint, key)
        header.check_content(state)
        return state.toreadonly()

    def _pages_of(self, head: bytes, content: memoryview) -> list[memoryview]:
        """Reads a file that is aligned, as pages."""
        whole = len(content) // PAGE_BYTES * PAGE_BYTES
        self._first[:] = head + bytes(PAGE_BYTES - len(head))
        rest = bytes(content[whole:])
        if not rest:
            return [self._first, content]
        self._last[:] = rest + bytes(PAGE_BYTES - len(rest))
        return [self._first, content[:whole], self._last]

    def _read_direct(self, file: FileIO, size: int) -> tuple[Header, memoryview] | None:
        """All of a file at once. None: it cannot be had that way."""
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
        """The header, before memory is taken, and then the rest."""
        file.seek(0)
        header = decode_header(file.read(HEADER_BYTES), size)
        header.check_names(fingerprint, key)
        state = self._arena.take(header.num_bytes, at_once=False)
        padding = file.read(header.begin - HEADER_BYTES)
        read_all(file, state)
        check_padding(padding, file.read(PAGE_BYTES))
        return header, state


def _set_direct(file: FileIO, *, is_on: bool) -> bool:
    """Whether what follows goes past the page cache. False: this system, or this file system, cannot do that."""
    if sys.platform != "linux":
        return False
    try:
        fcntl(file.fileno(), F_SETFL, os.O_DIRECT if is_on else 0)
    except OSError:
        return False
    return True


def _write_direct(file: FileIO, parts: Sequence[memoryview]) -> None:
    """All at once, if the disk takes it: each write of its own would be waited for."""
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
    """One part behind the other. The system takes at most two gigabytes at once.

    Raises:
        OSError: the disk is full, or fails.
    """
    for part in parts:
        left = part
        while left:
            left = left[file.write(left) :]


def read_all(file: FileIO, content: memoryview) -> None:
    """Fills memory from a file, which may be shorter than it was a moment ago: what is missing is anything, and the
    checksum notices.

    Raises:
        OSError: the disk fails.
    """
    left = content
    while left and (num_bytes := file.readinto(left)):  # the system gives at most two gigabytes at once
        left = left[num_bytes:]
