"""Where downloaded models lie, and the receipts that say that a file there is whole. Nothing is fetched here.

```
<cache>/models/catalog/smollm2/<file>.gguf         the model
                               <file>.gguf.json    its receipt: size, time and SHA-256 when it was checked
                               .<file>.gguf.part/  a download under way, or broken off: then it has a note (`.sha256`)
                                                   of the content that it is a part of; a later download goes on
                               .<file>.gguf.lock   held by the process that downloads
<cache>/models/hf/<org>/<repo>/<file>.gguf …
```
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import platformdirs

from stoker.errors import ConfigError, ModelError, ResourceExhausted, reason_of
from stoker.models.whole_files import write_whole

PACKED_DIR = "STOKER_PACKED_DIR"
"""The environment variable that names the folder of packed weights."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Receipt(msgspec.Struct, frozen=True):
    """What was known about a file when it was last checked."""

    model: str
    """The name that `resolve` takes for it."""
    source: str
    sha256: str
    size_bytes: int
    mtime_ns: int


def cache_dir() -> Path:
    """`STOKER_CACHE_DIR` if set, else the platform's cache directory for this application.

    Raises:
        ConfigError: it is in a home that is not known here.
    """
    chosen = os.environ.get("STOKER_CACHE_DIR")
    try:
        return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("stoker"))
    except RuntimeError:
        problem = f"environment STOKER_CACHE_DIR: {chosen!r} is in" if chosen else "this user has"
        raise ConfigError(
            f"{problem} no home folder that is known here; set STOKER_CACHE_DIR to the path of a folder for models",
            key="STOKER_CACHE_DIR",
        ) from None


def models_dir() -> Path:
    """Below it lie all downloaded models."""
    return cache_dir() / "models"


def packed_dir() -> Path:
    """Where weights lie that were packed for the native executor. They can be removed at any time.

    `STOKER_PACKED_DIR` if set, else a folder of `cache_dir`.

    Raises:
        ConfigError: it is in a home that is not known here.
    """
    chosen = os.environ.get(PACKED_DIR)
    return Path(chosen) if chosen else cache_dir() / "packed"


def kv_dir() -> Path:
    """Where the persistent prefix cache lies if no other folder is named."""
    return cache_dir() / "kv"


def files_dir() -> Path:
    """Where the files of clients lie if no other folder is named."""
    return cache_dir() / "files"


def receipt_path(path: Path) -> Path:
    """Where the receipt of the file `path` lies."""
    return path.with_name(path.name + ".json")


def lock_path(path: Path) -> Path:
    """The lock file of `path`; a process holds its lock while it writes or removes `path`."""
    return path.with_name(f".{path.name}.lock")


def part_note_path(part: Path) -> Path:
    """Beside a part of a file, whose content it names by its SHA-256; without it the part cannot be continued."""
    return part.with_name(f"{part.name}.sha256")


def read_receipt(path: Path) -> Receipt | None:
    """The receipt of the file `path`; None if there is none that can be read."""
    try:
        return msgspec.json.decode(receipt_path(path).read_bytes(), type=Receipt)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_receipt(at: Path, model: str, source: str, file: Path, sha256: str) -> None:
    """Notes that `file`, which is or will be at `at`, was checked just now."""
    status = file.stat()
    receipt = Receipt(model, source, sha256, status.st_size, status.st_mtime_ns)
    write_whole(receipt_path(at), msgspec.json.encode(receipt))


def is_whole(path: Path, sha256: str | None = None) -> bool:
    """Whether `path` is there with the content it should have; hashed again only if size or time changed.

    Args:
        path: a file in the cache.
        sha256: the content it must have; None = the one of its receipt.
    """
    receipt = read_receipt(path)
    expected = sha256 or (receipt.sha256 if receipt else None)
    try:
        status = path.stat()
    except OSError:
        return False
    if receipt and (receipt.size_bytes, receipt.mtime_ns) == (status.st_size, status.st_mtime_ns):
        return receipt.sha256 == expected
    if expected is None or file_sha256(path) != expected:
        return False
    if receipt:
        with suppress(OSError):  # a read-only cache works too, only slower
            write_receipt(path, receipt.model, receipt.source, path, expected)
    return True


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_free_space(path: Path, needed_bytes: int) -> None:
    """Refuses to begin what cannot be finished.

    Raises:
        ResourceExhausted: the file system of `path` (whose directory exists) has less than `needed_bytes` left.
    """
    if shutil.disk_usage(path.parent).free < needed_bytes:
        raise _exhausted(path, needed_bytes)


@contextmanager
def writing(path: Path, needed_bytes: int | None) -> Generator[None]:
    """Turns what the operating system says while `path` is written into our errors.

    Raises:
        ResourceExhausted: the disk (or the quota) is full; fields `path`, `needed_bytes`, `free_bytes`.
        ModelError: any other refusal, such as a read-only directory.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _exhausted(path, needed_bytes) from error
        raise ModelError(
            f"cannot write {path}: {reason_of(error)}; STOKER_CACHE_DIR names another folder", path=str(path)
        ) from error


class NewFile:
    """A file while it is written. What the operating system says becomes our errors, as with `writing`.

    Unbuffered, so that closing it has nothing left to write, and nothing to fail with.

    Args:
        path: does not exist, unless it is to be continued.
        needed_bytes: for the message if the disk is full.
        continues: goes on behind what is there already.
    """

    def __init__(self, path: Path, needed_bytes: int | None, *, continues: bool = False) -> None:
        self._path = path
        self._needed_bytes = needed_bytes
        with writing(path, needed_bytes):
            self._file = path.open("ab" if continues else "xb", buffering=0)
        self.size_bytes = self._file.tell()

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        with writing(self._path, self._needed_bytes):
            self._file.close()

    def write(self, piece: bytes) -> None:
        """Appends all of `piece`."""
        rest = memoryview(piece)
        with writing(self._path, self._needed_bytes):
            while rest:
                rest = rest[self._file.write(rest) :]
        self.size_bytes += len(piece)

    def clear(self) -> None:
        """Begins again with nothing in it."""
        with writing(self._path, self._needed_bytes):
            self._file.seek(0)
            self._file.truncate()
        self.size_bytes = 0


def _exhausted(path: Path, needed_bytes: int | None) -> ResourceExhausted:
    free = shutil.disk_usage(next(p for p in path.parents if p.exists())).free
    needed = "" if needed_bytes is None else f"about {needed_bytes / 1e6:.0f} MB are needed, and "
    return ResourceExhausted(
        f"no space left on the disk for {path}: {needed}{free / 1e6:.0f} MB are free. "
        "Free some, or set STOKER_CACHE_DIR to a directory on another disk.",
        path=str(path),
        needed_bytes=needed_bytes,
        free_bytes=free,
    )
