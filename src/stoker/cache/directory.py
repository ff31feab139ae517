"""The folder of the disk tier: the path of each block, atomic writes, and the eviction of blocks. It has no thread.

```
    DIR/kv/<fingerprint>/model.json    describes the model of the fingerprint, for people
    DIR/kv/<fingerprint>/<key>.kv      one block
    DIR/kv/<fingerprint>/<random>.tmp  being written, or left by a process that was killed
    DIR/kv/cleaning                    lock: only one process at a time removes blocks
```

Several processes may share a folder: a block's name stands for everything that its content depends on, so all writers
write the same content. Nothing outside of `DIR/kv` is touched, nor files in it with other names. Every method may wait
for the disk; the disk tier's thread and the command line call them. One thread at a time reads and writes blocks.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from stoker.cache.arena import Arena
from stoker.cache.block_file import HEADER_BYTES, KEY_BYTES, BadBlockFile, decode_header
from stoker.cache.file_io import BlockFiles, create, opened
from stoker.core.tiers import KVBytes

_TICK_NS = 2 * 10**9
"""Resolution of the coarsest file system clock in use."""
_SKEW_NS = 3600 * 10**9
"""Upper bound on the difference between the clocks of two machines: a change older than this is certainly old."""
_NONE: Mapping[bytes, int] = {}
_TMP_AGE_S = 3600.0
"""Age in seconds from which a temporary file counts as left by a killed process."""
_CLEANING = "cleaning"
_CLEANING_S = 300.0
"""Age in seconds from which a `cleaning` lock counts as left by a killed process."""
_MODEL_NAME = re.compile(r"[0-9a-f]{64}")
_BLOCK_NAME = re.compile(r"[0-9a-f]{32}\.kv")


class KeptModel(msgspec.Struct, frozen=True):
    """The model of a fingerprint, as described in `model.json`."""

    name: str
    kv_format: str


class BlockEntry(NamedTuple):
    """The file of one block. A tuple, because there may be hundreds of thousands."""

    folder: str
    name: str
    num_bytes: int
    used_at: float
    """When it was last written or read, in seconds since 1970."""

    @property
    def path(self) -> Path:
        return Path(self.folder, self.name)

    @property
    def key(self) -> bytes:
        return _key_of(self.name)


class BlockDirectory:
    """The blocks of all models below one folder. Folders are created when something is written.

    Args:
        root: the folder that the user chose.
        clock: returns nanoseconds; only differences count.
    """

    search_s = 1.0

    def __init__(self, root: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.folder = root / "kv"
        self._clock = clock
        self._seen: dict[bytes, tuple[int, int]] = {}
        """For each model, the modification time of its folder, and when this process first saw that time."""
        self.arena = Arena()
        """Allocator of the memory for blocks that are read; others may allocate from it, too."""
        self._files = BlockFiles(self.arena)

    def notes(self, own: Path) -> Path:
        """See `BlockPlace`."""
        return self.folder / "weights.json"

    def free_bytes(self) -> int:
        """Free bytes on the disk; `sys.maxsize` if they cannot be determined: then a write to a full disk fails."""
        existing = next((path for path in (self.folder, *self.folder.parents) if os.path.exists(path)), self.folder)
        try:
            return shutil.disk_usage(existing).free
        except OSError:
            return sys.maxsize

    def prepare(self) -> None:
        """Creates the user's folder, and checks that files in it can be renamed. Mounted object stores often refuse it.

        Raises:
            OSError: blocks cannot be kept there; the text says why.
        """
        os.makedirs(self.folder.parent, exist_ok=True)
        temporary = f"{self.folder.parent}/{os.urandom(8).hex()}.tmp"
        create(temporary).close()
        try:
            os.replace(temporary, f"{temporary}2")
        except OSError as error:
            os.unlink(temporary)
            message = f"files cannot be renamed there ({error.strerror}). Name an object store by its URL: s3://BUCKET"
            raise OSError(error.errno, message) from error
        os.unlink(f"{temporary}2")

    def look(self) -> None:
        """Checks that the user's folder can be read.

        Raises:
            OSError: it is not there, or cannot be read.
        """
        os.scandir(self.folder.parent).close()

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        """Writes a block; a reader sees all of it or nothing. Returns the size of the file.

        Raises:
            OSError: the disk is full, or the folder cannot be written to; nothing is left behind.
        """
        folder = f"{self.folder}/{fingerprint.hex()}"
        temporary = f"{folder}/{os.urandom(8).hex()}.tmp"
        try:
            file = create(temporary)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            file = create(temporary)
        try:
            with file:
                num_bytes = self._files.write(file, fingerprint, key, state)
            os.replace(temporary, self._path(fingerprint, key))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return num_bytes

    def begin(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """Does nothing: parallel reads are not faster on a disk."""

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes:
        """Reads a block.

        Raises:
            FileNotFoundError: the block is not in the folder (any more).
            BadBlockFile: the file is damaged, or is not this block.
            OSError: the file cannot be read.
        """
        return self._files.read(self._path(fingerprint, key), fingerprint, key)

    def note_use(self, fingerprint: bytes, key: bytes, used_at: float) -> None:
        """Sets the time at which a block was last used, in seconds since 1970. The block may be gone."""
        with suppress(OSError):
            os.utime(self._path(fingerprint, key), (used_at, used_at))

    def remove(self, fingerprint: bytes, key: bytes) -> None:
        """Removes a block, if it is still there."""
        with suppress(OSError):
            os.unlink(self._path(fingerprint, key))

    def describe(self, fingerprint: bytes, model: KeptModel) -> None:
        """Writes `model.json`, which describes the model of a fingerprint, unless it exists.

        Raises:
            OSError: the folder cannot be written to.
        """
        path = f"{self.folder}/{fingerprint.hex()}/model.json"
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(model)))

    def described(self, fingerprint: str) -> KeptModel:
        """The model of a fingerprint; with `unknown` values if `model.json` is missing or cannot be read."""
        try:
            return msgspec.json.decode((self.folder / fingerprint / "model.json").read_bytes(), type=KeptModel)
        except (OSError, msgspec.DecodeError):
            return KeptModel("unknown", "unknown")

    def models(self) -> list[str]:
        """The fingerprints that have a folder."""
        return sorted(entry.name for entry in _scan(self.folder) if _MODEL_NAME.fullmatch(entry.name))

    def state(self, fingerprint: bytes) -> int | None:
        """A number that changes when a block of the model is added or removed. None: it cannot be determined now."""
        try:
            changed_ns = os.stat(f"{self.folder}/{fingerprint.hex()}").st_mtime_ns
        except OSError:
            return None
        now_ns, (seen_ns, since_ns) = self._clock(), self._seen.get(fingerprint, (-1, 0))
        if changed_ns != seen_ns:
            since_ns = now_ns
            self._seen[fingerprint] = changed_ns, now_ns
        # A change within the same tick of the file system's clock (not this machine's) does not change the number.
        is_old = now_ns - since_ns > _TICK_NS or time.time_ns() - changed_ns > _SKEW_NS
        return changed_ns if is_old else None

    def keys(self, fingerprint: bytes, known: Mapping[bytes, int] = _NONE) -> dict[bytes, int]:
        """The keys of all blocks of one model, with the sizes of their files. The content is not read.

        Args:
            known: sizes that need not be looked up: the file of a block never changes its size.
        """
        folder, found = f"{self.folder}/{fingerprint.hex()}", dict[bytes, int]()
        for name in _names(folder):
            if _BLOCK_NAME.fullmatch(name):
                key = _key_of(name)
                size = known.get(key)
                if size is None:
                    try:
                        size = os.lstat(f"{folder}/{name}").st_size
                    except OSError:  # another process has just removed it
                        continue
                found[key] = size
        return found

    def latest(self, fingerprint: bytes, limit_bytes: int) -> list[bytes]:
        """The keys of the most recently used blocks of one model, latest first, up to a total size of `limit_bytes`."""
        if not limit_bytes:
            return []
        blocks = sorted(self.blocks(fingerprint.hex()), key=_used_at, reverse=True)
        sizes = accumulate(entry.num_bytes for entry in blocks)
        return [entry.key for entry, size in zip(blocks, sizes, strict=True) if size <= limit_bytes]

    def blocks(self, fingerprint: str) -> Iterator[BlockEntry]:
        """The files of all blocks of one model."""
        folder = f"{self.folder}/{fingerprint}"
        for entry in _scan(folder):
            if _BLOCK_NAME.fullmatch(entry.name):
                try:
                    stat = entry.stat(follow_symlinks=False)
                except OSError:  # another process has just removed it
                    continue
                yield BlockEntry(folder, entry.name, stat.st_size, stat.st_mtime)

    def shrink(self, limit_bytes: int) -> list[BlockEntry]:
        """Removes the least recently used blocks of all models until the rest fits; returns the removed blocks.

        Does nothing while another process removes blocks: together they would remove too many.
        """
        if self._excess(limit_bytes)[0] <= 0:
            return []
        with self._cleaning() as is_alone:
            excess, blocks = self._excess(limit_bytes) if is_alone else (0, [])
            removed: list[BlockEntry] = []
            for entry in sorted(blocks, key=_used_at) if excess > 0 else ():
                if excess <= 0:
                    break
                with suppress(OSError):
                    entry.path.unlink()
                excess -= entry.num_bytes
                removed.append(entry)
            return removed

    def _excess(self, limit_bytes: int) -> tuple[int, list[BlockEntry]]:
        """Number of bytes by which the blocks exceed the limit, and all blocks."""
        blocks = [entry for fingerprint in self.models() for entry in self.blocks(fingerprint)]
        return sum(entry.num_bytes for entry in blocks) - limit_bytes, blocks

    @contextmanager
    def _cleaning(self) -> Generator[bool]:
        """Whether this process may remove blocks while the `with` block runs, on all machines that share the folder."""
        path = f"{self.folder}/{_CLEANING}"
        is_alone = _claimed(path) or (_is_abandoned(path) and _claimed(path))
        try:
            yield is_alone
        finally:
            if is_alone:
                with suppress(OSError):
                    os.unlink(path)

    def sweep(self) -> Iterator[tuple[Path, str]]:
        """Removes files that this version cannot read, and files that killed processes left.

        Yields every checked file, with its fault or an empty string. Only headers are checked: damaged content is found
        when a block is read.
        """
        for fingerprint in self.models():
            _remove_leftovers(self.folder / fingerprint)
            for entry in list(self.blocks(fingerprint)):
                fault = _fault(entry, fingerprint)
                if fault:
                    with suppress(OSError):
                        entry.path.unlink()
                yield entry.path, fault

    def check(self, fingerprint: str) -> Iterator[tuple[BlockEntry, str]]:
        """Reads all blocks of one model, removes damaged ones; yields each file with its fault or an empty string."""
        for entry in list(self.blocks(fingerprint)):
            fault = ""
            try:
                self._files.read(entry.path, bytes.fromhex(fingerprint), entry.key)
            except FileNotFoundError:
                continue
            except (BadBlockFile, OSError) as error:
                fault = str(error)
                with suppress(OSError):
                    entry.path.unlink()
            yield entry, fault

    def clear(self, fingerprint: str) -> int:
        """Removes all blocks of one model; returns their size in bytes.

        Raises:
            OSError: the folder cannot be written to.
        """
        num_bytes = 0
        for entry in list(self.blocks(fingerprint)):
            with suppress(OSError):
                entry.path.unlink()
                num_bytes += entry.num_bytes
        (self.folder / fingerprint / "model.json").unlink(missing_ok=True)
        with suppress(OSError):  # the folder has a file that is not ours
            (self.folder / fingerprint).rmdir()
        return num_bytes

    def close(self) -> None:
        """Does nothing: no read or write continues in the background."""

    def _path(self, fingerprint: bytes, key: bytes) -> str:
        return f"{self.folder}/{fingerprint.hex()}/{key.hex()}.kv"


def _key_of(name: str) -> bytes:
    return bytes.fromhex(name[: 2 * KEY_BYTES])


def _used_at(entry: BlockEntry) -> float:
    return entry.used_at


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # not there yet, or no longer
        return []


def _scan(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # not there yet, or no longer
        return []


def _fault(entry: BlockEntry, fingerprint: str) -> str:
    """Why a file is not a valid block; empty if it is one, or is gone."""
    try:
        with opened(entry.path) as (file, size):
            header = decode_header(file.read(HEADER_BYTES), size)
            header.check_names(bytes.fromhex(fingerprint), entry.key)
    except FileNotFoundError:
        pass
    except (BadBlockFile, OSError) as error:
        return str(error)
    return ""


def _remove_leftovers(folder: Path) -> None:
    for entry in _scan(folder):
        if entry.name.endswith(".tmp"):
            with suppress(OSError):
                if time.time() - entry.stat().st_mtime > _TMP_AGE_S:
                    os.unlink(entry.path)


def _claimed(path: str) -> bool:
    """Creates the file; False if it was there already."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


def _is_abandoned(path: str) -> bool:
    """Removes a lock file that is too old. The age is measured with the file system's clock, not this machine's."""
    now = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        os.close(os.open(now, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        if os.stat(now).st_mtime - os.stat(path).st_mtime <= _CLEANING_S:
            return False
        os.rename(path, now)  # one of several processes that find the claim too old does this
    except OSError:
        return False
    finally:
        with suppress(OSError):
            os.unlink(now)
    return True
