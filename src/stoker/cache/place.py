"""The place where KV blocks outlive the process (`--cache-dir`): a folder, or an object store. It moves no block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stoker.cache.arena import Arena
from stoker.cache.directory import BlockDirectory, BlockEntry, KeptModel
from stoker.cache.objects import ObjectDirectory, is_object_url
from stoker.core.tiers import KVBytes
from stoker.errors import ConfigError


class BlockPlace(Protocol):
    """A folder or object store with blocks of all models, which several processes may share. See `BlockDirectory`."""

    arena: Arena
    search_s: float
    """Interval of searches for blocks of other processes, in seconds."""

    def notes(self, own: Path) -> Path:
        """The file with digests of weights: beside the blocks, or in this machine's `own` folder."""
        ...

    def free_bytes(self) -> int | None:
        """Number of free bytes. None: space is unlimited, and nothing is evicted."""
        ...

    def prepare(self) -> None:
        """Checks that blocks can be kept here, before anything is computed.

        Raises:
            OSError: they cannot; the message says why.
        """
        ...

    def look(self) -> None:
        """Checks that stored blocks can be listed.

        Raises:
            FileNotFoundError: there is no such folder yet.
            OSError: it cannot be read; the text says why.
        """
        ...

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int: ...
    def begin(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """Announces the blocks that are read next, so that several of them can be prefetched in parallel."""
        ...

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes: ...
    def note_use(self, fingerprint: bytes, key: bytes, used_at: float) -> None: ...
    def remove(self, fingerprint: bytes, key: bytes) -> None: ...
    def describe(self, fingerprint: bytes, model: KeptModel) -> None: ...
    def described(self, fingerprint: str) -> KeptModel: ...
    def models(self) -> list[str]: ...
    def state(self, fingerprint: bytes) -> int | None: ...
    def keys(self, fingerprint: bytes, known: Mapping[bytes, int] = ...) -> dict[bytes, int]: ...
    def latest(self, fingerprint: bytes, limit_bytes: int) -> list[bytes]: ...
    def blocks(self, fingerprint: str) -> Iterator[BlockEntry]: ...
    def shrink(self, limit_bytes: int) -> list[BlockEntry]: ...
    def sweep(self) -> Iterator[tuple[Path, str]]: ...
    def check(self, fingerprint: str) -> Iterator[tuple[BlockEntry, str]]: ...
    def clear(self, fingerprint: str) -> int: ...
    def close(self) -> None:
        """Cancels reads in progress. Calling it twice is allowed."""
        ...


def open_place(where: str) -> BlockPlace:
    """The place that `--cache-dir` names.

    Args:
        where: a folder, or the URL of a bucket with a prefix.

    Raises:
        ConfigError: the URL cannot be used, or the library for it is not installed.
    """
    if is_object_url(where):
        return ObjectDirectory.at(where)
    if "://" in where:
        raise ConfigError(f"{where} is no folder, and no object store that is known: s3, gs, az", key="kv_cache_dir")
    return BlockDirectory(Path(where).expanduser())
