"""Where blocks of KV outlive the process, by the words of the user: a folder, or an object store. It moves no block."""

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
    """Blocks of all models in one place, which several processes may use. See `BlockDirectory` for each method."""

    arena: Arena
    search_s: float
    """Interval at which blocks of other processes are looked for, in seconds."""

    def notes(self, own: Path) -> Path:
        """File in which digests of weights are noted: beside the blocks, or in this machine's `own` folder."""
        ...

    def free_bytes(self) -> int | None:
        """Space that is free there. None: there is no end of it, and nothing leaves for lack of space."""
        ...

    def prepare(self) -> None:
        """Checks that blocks can be kept here, before anything is computed.

        Raises:
            OSError: they cannot; the text says why.
        """
        ...

    def look(self) -> None:
        """Checks that what is kept can be seen.

        Raises:
            FileNotFoundError: there is no such folder yet.
            OSError: it cannot be read; the text says why.
        """
        ...

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int: ...
    def begin(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """Announces what is read next, so that several blocks may be on their way at once."""
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
        """Ends what is on its way. Calling it twice is allowed."""
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
