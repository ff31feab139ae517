"""A small JSON file in the cache that several processes read and replace as a whole."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from stoker.errors import ModelError
from stoker.lazy import lazy_module
from stoker.models.cache import writing
from stoker.models.whole_files import write_whole

if TYPE_CHECKING:
    import filelock
else:
    filelock = lazy_module("filelock")  # for those who write

T = TypeVar("T")

_LOCK_S = 10.0


class JsonFile(Generic[T]):
    """A table by name.

    Args:
        path: it need not exist yet.
        kind: the type of each value.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._kind = kind

    def read(self) -> dict[str, T]:
        """All of it; nothing if there is no file, or none that can be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, self._kind])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def write(self, values: dict[str, T]) -> None:
        """Replaces all of it; call it while the file is `locked`.

        Raises:
            ModelError: the cache cannot be written.
            ResourceExhausted: the disk is full.
        """
        with writing(self._path, None):
            write_whole(self._path, msgspec.json.encode(values))

    @contextmanager
    def locked(self) -> Generator[None]:
        """Meanwhile no other process changes it.

        Raises:
            ModelError: another process holds it for too long, or the cache cannot be written.
        """
        path = self._path
        lock = filelock.FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_S)
        with writing(path, None):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except filelock.Timeout:
                raise ModelError(f"another process has been writing {path} for too long", path=str(path)) from None
        try:
            yield
        finally:
            lock.release()
