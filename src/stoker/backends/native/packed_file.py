"""The directory of packed weights: one file per model and layout, written by one process, mapped by all processes.

```
packed/<fingerprint>.stoker    | head: magic, size and SHA-256 of the description, description as JSON | packed memory |
                                 HEAD_BYTES
packed/.<fingerprint>.lock     held by the process that packs
packed/.<fingerprint>.<pid>…   an unfinished file, renamed when it is complete
```

Only complete files have the final name. When a file is mapped, only its head and its size are checked.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from mmap import ACCESS_READ, ALLOCATIONGRANULARITY, mmap
from pathlib import Path
from typing import Protocol

from filelock import FileLock
from filelock import Timeout as LockTimeout

from stoker import _native
from stoker.backends.native.file import ModelFile, ModelParts
from stoker.backends.native.huge_pages import forget_small_pages, prefer_huge_pages, read_in_huge_pages
from stoker.backends.native.layout import Layout
from stoker.errors import reason_of

logger = logging.getLogger(__name__)

DIRECTORY_BYTES = 64 << 30
"""Default size limit of the directory, in bytes."""
HEAD_BYTES = 65536
"""Offset of the packed memory in a file: a multiple of every page size."""

_NUM_SAMPLES = 32
_SAMPLE_BYTES = 4096
_MAGIC = b"STOKER packed\x00\x00\x01"
_SIZE = struct.Struct("<Q")
_SUFFIX = ".stoker"
_PART_NAME = re.compile(r"\.(\w+)\.\d+\.[0-9a-f]+\.part")
_WAIT_S = 600.0
"""Longest wait for another process that packs the same model; then this process packs into its own memory."""
_READ_WAIT_S = 60.0
"""Longest wait for another process that reads the same file; then this process does not check its pages."""

assert HEAD_BYTES % ALLOCATIONGRANULARITY == 0


class Sink(Protocol):
    """A destination of packed bytes. Threads write to different offsets at the same time."""

    def write(self, offset: int, piece: memoryview) -> None: ...


def fingerprint(parts: ModelParts, layout: Layout) -> str:
    """The name of a packed file: a digest of the model's files (size, time, header, samples) and of the layout.

    Samples are necessary because container images give every file the same time: two models of one shape would
    otherwise have the same name.
    """
    digest = hashlib.sha256()
    for file in parts.files:
        status = file.path.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns} ".encode())
        for part in samples_of(file):
            digest.update(part)
    digest.update(f"{_native.LAYOUT_VERSION} {layout.num_bytes} ".encode())
    vectors = (*layout.norms.items(), *layout.biases.items(), *layout.scales.items())
    for key, place in (*layout.matrices.items(), *vectors):
        digest.update(f"{key} {place}\n".encode())
    return digest.hexdigest()[:40]


def samples_of(file: ModelFile) -> Iterator[memoryview]:
    """Bytes that distinguish files independently of their paths: all bytes before the tensors' data, and some bytes
    from the middle of fewer than `2 * _NUM_SAMPLES` tensors, spread over the file.
    """
    yield file.header_data()
    names = list(file.tensors)
    for name in names[:: max(1, len(names) // _NUM_SAMPLES)]:
        data = file.tensor_data(name)
        yield data[len(data) // 2 :][:_SAMPLE_BYTES]


class PackedStore:
    """The packed files in `directory`, whose total size is limited to `max_bytes`, including the newest file."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    def find(self, name: str, num_bytes: int) -> mmap | None:
        """Maps the packed file `name` from `HEAD_BYTES` on, read-only; None if there is no valid file."""
        return _map(self._path(name), name, num_bytes)

    def open(self, name: str, num_bytes: int, fill: Callable[[Sink], None]) -> mmap | None:
        """Maps the packed file `name`; `fill` writes it first if there is none.

        Args:
            name: see `fingerprint`.
            num_bytes: size of the packed memory.
            fill: writes every byte that is not zero.

        Returns:
            The file from `HEAD_BYTES` on, read-only; None, after a warning in the log, if it cannot be written to the
            directory.
        """
        path = self._path(name)
        found = _map(path, name, num_bytes)
        if found is not None:
            return found
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._lock(name, _WAIT_S):
                found = _map(path, name, num_bytes)
                if found is None:
                    self._write(path, name, num_bytes, fill)
                    found = _map(path, name, num_bytes)
        except (OSError, LockTimeout) as error:
            message = "cannot keep the packed weights in %s (STOKER_PACKED_DIR), so each start packs them again: %s"
            logger.warning(message, self._directory, reason_of(error))
            return None
        return found

    def read_in_huge_pages(self, name: str) -> None:
        """Reads the packed file `name` before its mapping is used. Processes do this in turn, because the kernel may
        take small pages for a file that several processes read at once.
        """
        with (
            suppress(OSError, ValueError, LockTimeout),
            self._path(name).open("rb") as file,
            self._lock(name, _READ_WAIT_S),
        ):
            read_in_huge_pages(file.fileno())

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{_SUFFIX}"

    def _write(self, path: Path, name: str, num_bytes: int, fill: Callable[[Sink], None]) -> None:
        self._remove_leftovers(name)
        self._make_room(path, num_bytes)
        part = self._directory / f".{name}.{os.getpid()}.{secrets.token_hex(4)}.part"
        try:
            with _NewFile(part, HEAD_BYTES + num_bytes) as file:
                fill(file)
                file.finish(_head(name, num_bytes))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def _remove_leftovers(self, name: str) -> None:
        """Removes unfinished files of dead processes; live ones hold their file's lock. The caller holds `name`'s."""
        for part in self._directory.glob(".*.part"):
            if found := _PART_NAME.fullmatch(part.name):
                held = nullcontext() if found[1] == name else self._lock(found[1], 0.0)
                with suppress(OSError, LockTimeout), held:
                    part.unlink()

    def _lock(self, name: str, wait_s: float) -> FileLock:
        return FileLock(self._directory / f".{name}.lock", timeout=wait_s)

    def _make_room(self, path: Path, num_bytes: int) -> None:
        """Removes the least recently opened files until the others and the new file are within the limit."""
        others: list[tuple[int, int, Path]] = []
        for other in self._directory.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # other processes remove files, too
                status = other.stat()
                others.append((status.st_mtime_ns, status.st_size, other))
        left = self._max_bytes - num_bytes - sum(size for _, size, _ in others)
        for _, size, other in sorted(others):
            if left >= 0 and other != path:
                continue
            logger.info("removing the packed weights %s", other)
            with suppress(OSError):
                other.unlink()
                left += size


class _NewFile:
    """A sink that writes a new file. With `pwrite` a full disk is an error; through a mapping it would be a signal."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.truncate(self._file, num_bytes)
        except OSError:
            os.close(self._file)
            raise

    def __enter__(self) -> _NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write(self, offset: int, piece: memoryview) -> None:
        self._write(HEAD_BYTES + offset, piece)

    def finish(self, head: bytes) -> None:
        """Writes the head last, because a file without it is invalid."""
        os.fsync(self._file)
        self._write(0, memoryview(head))
        os.fsync(self._file)
        forget_small_pages(self._file)

    def _write(self, at: int, piece: memoryview) -> None:
        while piece:
            count = os.pwrite(self._file, piece, at)
            at, piece = at + count, piece[count:]


def _head(name: str, num_bytes: int) -> bytes:
    description = json.dumps({"fingerprint": name, "num_bytes": num_bytes}).encode()
    return _MAGIC + _SIZE.pack(len(description)) + hashlib.sha256(description).digest() + description


def _begins_with(file: int, expected: bytes) -> bool:
    """Compares in a mapping, because `read` would leave the beginning of the file in small pages."""
    with mmap(file, len(expected), access=ACCESS_READ) as head:
        prefer_huge_pages(head)
        return head[:] == expected


def _map(path: Path, name: str, num_bytes: int) -> mmap | None:
    """Maps the packed memory in a file; None if the file is missing, damaged or of another model."""
    expected = _head(name, num_bytes)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size != HEAD_BYTES + num_bytes or not _begins_with(file.fileno(), expected):
                logger.warning("%s is damaged or out of date; the weights are packed again", path)
                return None
            found = mmap(file.fileno(), num_bytes, access=ACCESS_READ, offset=HEAD_BYTES)
            prefer_huge_pages(found)
        with suppress(OSError):  # a read-only directory, from which nothing is removed
            os.utime(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be mapped: %s", path, error)
        return None
    return found
