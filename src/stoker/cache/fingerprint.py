"""Fingerprint of everything that exported KV depends on, besides entries and adapters. It knows no model format.

The whole content of the weights counts: two models that differ in a single matrix must never share KV. Hashing takes a
second per gigabyte, so the digests of files are stored beside the cache, and reused until the files change.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A weights file, with its size, modification time and inode when it was loaded."""

    path: Path
    stat: os.stat_result

    @classmethod
    def of(cls, path: Path) -> WeightFile:
        """The file as it is now.

        Raises:
            OSError: there is none.
        """
        return cls(path, path.stat())


class _Note(msgspec.Struct, frozen=True):
    """The digest of a file's content, valid while size, modification time and inode are unchanged."""

    size_bytes: int
    mtime_ns: int
    inode: int
    digest: str

    def is_about(self, stat: os.stat_result) -> bool:
        return (self.size_bytes, self.mtime_ns, self.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino)


_MAX_NOTES = 256
"""Maximum number of stored digests, of all machines that use the folder; the oldest are dropped."""
_decoder = msgspec.json.Decoder(dict[str, _Note])


def fingerprint(weights: Iterable[WeightFile], kv_format: str, notes: Path) -> bytes:
    """A hash of 32 bytes of the content of the weights and the KV format.

    Args:
        weights: all files of the model, in order.
        kv_format: see `ModelInfo.kv_format`.
        notes: file in which digests are stored; may be missing or damaged.

    Raises:
        OSError: a file cannot be read, or was replaced after it had been loaded.
    """
    digest = hashlib.blake2b(kv_format.encode(), digest_size=32)
    for weight in weights:
        digest.update(bytes.fromhex(_content_digest(weight, notes)))
    return digest.digest()


def _content_digest(weight: WeightFile, notes: Path) -> str:
    real = os.path.realpath(weight.path)
    name = f"{real}:{weight.stat.st_ino}"  # machines that share the folder have other files at the same path
    noted = _read_notes(notes).get(name)
    if noted is not None and noted.is_about(weight.stat):
        return noted.digest
    with open(real, "rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
        after = os.fstat(file.fileno())
    found = _Note(after.st_size, after.st_mtime_ns, after.st_ino, digest)
    if not found.is_about(weight.stat):
        raise OSError(f"{weight.path} was replaced after it had been loaded")
    with suppress(OSError):  # then it is computed again next time
        known = [(other, note) for other, note in _read_notes(notes).items() if other != name]
        _write_notes(notes, dict([*known, (name, found)][-_MAX_NOTES:]))
    return digest


def _read_notes(path: Path) -> dict[str, _Note]:
    try:
        return _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}


def _write_notes(path: Path, notes: dict[str, _Note]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(suffix=".tmp", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(notes))
    os.replace(temporary, path)
