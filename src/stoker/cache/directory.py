"""The folder of the disk tier: where each block lies, how it is written whole or not at all, what leaves first.

```
    DIR/kv/<fingerprint>/model.json    what the fingerprint stands for, for people
    DIR/kv/<fingerprint>/<key>.kv      one block
    DIR/kv/<fingerprint>/<random>.tmp  being written, or left by a process that was killed
```

Several processes may use one folder: a block's name says all that it depends on, so whoever writes it writes the same.
Nothing outside `DIR/kv` is touched, and nothing in it that has another kind of name. Every method may take as long as
the disk likes; the thread of the disk tier calls them, and the command line.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate
from pathlib import Path
from stat import S_ISREG

import msgspec

from stoker.cache.arena import Arena
from stoker.cache.block_file import HEADER_BYTES, BadBlockFile, decode, decode_header, encode_header
from stoker.core.tiers import KVBytes

_TMP_AGE_S = 3600.0
"""A temporary file this old belongs to nobody any more."""
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_MODEL_NAME = re.compile(r"[0-9a-f]{64}")
_BLOCK_NAME = re.compile(r"[0-9a-f]{32}\.kv")


class KeptModel(msgspec.Struct, frozen=True):
    """What a fingerprint stands for, as `model.json` says it."""

    name: str
    kv_format: str


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One block's file."""

    path: Path
    num_bytes: int
    used_at: float
    """When it was last written or read, in seconds since 1970."""


class BlockDirectory:
    """All models' blocks below one folder. Nothing is created before something is written.

    Args:
        root: the folder that the user chose.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "kv"
        self._arena = Arena()

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        """Writes a block; a reader sees all of it or nothing. Returns the size of the file.

        Raises:
            OSError: the disk is full, or the folder cannot be written to; nothing is left behind.
        """
        path = self._path(fingerprint, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(encode_header(fingerprint, key, state))
                file.write(state)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        return HEADER_BYTES + len(state)

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes:
        """A block. One thread only.

        Raises:
            FileNotFoundError: it is not here (any more).
            BadBlockFile: there is a file, but not with this block.
            OSError: the disk refuses.
        """
        return decode(_content(self._path(fingerprint, key), self._arena), fingerprint, key)

    def note_use(self, fingerprint: bytes, key: bytes, used_at: float) -> None:
        """A block counts as last used then, in seconds since 1970; that it is gone is fine."""
        with suppress(OSError):
            os.utime(self._path(fingerprint, key), (used_at, used_at))

    def remove(self, fingerprint: bytes, key: bytes) -> None:
        """Removes a block; that it is gone already is fine."""
        with suppress(OSError):
            self._path(fingerprint, key).unlink()

    def describe(self, fingerprint: bytes, model: KeptModel) -> None:
        """Notes what a fingerprint stands for.

        Raises:
            OSError: the folder cannot be written to.
        """
        path = self.folder / fingerprint.hex() / "model.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(model)))

    def described(self, fingerprint: str) -> KeptModel:
        """What a fingerprint stands for; unknown if the note is missing or cannot be read."""
        try:
            return msgspec.json.decode((self.folder / fingerprint / "model.json").read_bytes(), type=KeptModel)
        except (OSError, msgspec.DecodeError):
            return KeptModel("unknown", "unknown")

    def models(self) -> list[str]:
        """The fingerprints of which there is a folder."""
        return sorted(entry.name for entry in _scan(self.folder) if _MODEL_NAME.fullmatch(entry.name))

    def keys(self, fingerprint: bytes) -> dict[bytes, int]:
        """The blocks of one model with the sizes of their files, by their names only."""
        return {bytes.fromhex(e.path.stem): e.num_bytes for e in self.blocks(fingerprint.hex())}

    def latest(self, fingerprint: bytes, limit_bytes: int) -> list[bytes]:
        """The keys of those blocks of one model that were used last, the last one first, as many as fit."""
        blocks = sorted(self.blocks(fingerprint.hex()), key=lambda entry: entry.used_at, reverse=True)
        sizes = accumulate(entry.num_bytes for entry in blocks)
        return [bytes.fromhex(e.path.stem) for e, size in zip(blocks, sizes, strict=True) if size <= limit_bytes]

    def blocks(self, fingerprint: str) -> Iterator[BlockEntry]:
        """Every block's file of one model."""
        for entry in _scan(self.folder / fingerprint):
            if _BLOCK_NAME.fullmatch(entry.name):
                with suppress(OSError):  # another process has just removed it
                    stat = entry.stat(follow_symlinks=False)
                    yield BlockEntry(Path(entry.path), stat.st_size, stat.st_mtime)

    def shrink(self, limit_bytes: int) -> list[BlockEntry]:
        """Removes those used least recently, of whichever model, until the rest fits; returns what it removed."""
        blocks = [entry for fingerprint in self.models() for entry in self.blocks(fingerprint)]
        excess = sum(entry.num_bytes for entry in blocks) - limit_bytes
        removed: list[BlockEntry] = []
        for entry in sorted(blocks, key=lambda entry: entry.used_at):
            if excess <= 0:
                break
            with suppress(OSError):
                entry.path.unlink()
            excess -= entry.num_bytes
            removed.append(entry)
        return removed

    def sweep(self) -> Iterator[tuple[Path, str]]:
        """Removes what this version cannot read, and what killed processes left.

        Yields every file it has looked at, with its fault or an empty text. It looks at beginnings only: a damaged
        rest is found when the block is read.
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
        """Reads all of one model, and removes what is damaged; yields each file with its fault or an empty text."""
        for entry in list(self.blocks(fingerprint)):
            fault = ""
            try:
                content = _content(entry.path, Arena())
                decode(content, bytes.fromhex(fingerprint), bytes.fromhex(entry.path.stem))
            except FileNotFoundError:
                continue
            except (BadBlockFile, OSError) as error:
                fault = str(error)
                with suppress(OSError):
                    entry.path.unlink()
            yield entry, fault

    def clear(self, fingerprint: str) -> int:
        """Removes all of one model; returns how many bytes that were.

        Raises:
            OSError: the folder cannot be written to.
        """
        num_bytes = 0
        for entry in list(self.blocks(fingerprint)):
            with suppress(OSError):
                entry.path.unlink()
                num_bytes += entry.num_bytes
        (self.folder / fingerprint / "model.json").unlink(missing_ok=True)
        with suppress(OSError):  # something is in it that is not ours
            (self.folder / fingerprint).rmdir()
        return num_bytes

    def _path(self, fingerprint: bytes, key: bytes) -> Path:
        return self.folder / fingerprint.hex() / f"{key.hex()}.kv"


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # not there yet, or no longer
        return []


@contextmanager
def _opened(path: Path) -> Generator[tuple[FileIO, int]]:
    """A block's file and its size. What is no plain file is not looked into: that could take for ever."""
    with FileIO(os.open(path, _READING), "rb") as file:
        stat = os.fstat(file.fileno())
        if not S_ISREG(stat.st_mode):
            raise BadBlockFile("no plain file")
        yield file, stat.st_size


def _content(path: Path, arena: Arena) -> memoryview:
    with _opened(path) as (file, size):
        head = file.read(HEADER_BYTES)
        decode_header(head, size)  # before memory is taken for it
        content = arena.take(size)
        content[:HEADER_BYTES] = head
        # Shorter than it was a moment ago: what is missing is zeros, and the checksum notices.
        file.readinto(content[HEADER_BYTES:])
    return content.toreadonly()


def _fault(entry: BlockEntry, fingerprint: str) -> str:
    """Why a file is none of ours, or empty."""
    try:
        with _opened(entry.path) as (file, size):
            header = decode_header(file.read(HEADER_BYTES), size)
    except FileNotFoundError:
        return ""
    except (BadBlockFile, OSError) as error:
        return str(error)
    is_right = header.matches(bytes.fromhex(fingerprint), bytes.fromhex(entry.path.stem))
    return "" if is_right else "another block under this name"


def _remove_leftovers(folder: Path) -> None:
    for entry in _scan(folder):
        if entry.name.endswith(".tmp"):
            with suppress(OSError):
                if time.time() - entry.stat().st_mtime > _TMP_AGE_S:
                    os.unlink(entry.path)
