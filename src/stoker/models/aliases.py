"""Further names for models, kept beside them in the cache. A model's file never changes, so a name is a whole copy.

```
<cache>/models/aliases.json     {"mine": "smollm2"}
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import filelock
import msgspec

from stoker.errors import InvalidInput, ModelError
from stoker.models.cache import models_dir, writing
from stoker.models.catalog import CATALOG

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*(:[\w.-]+)?", re.ASCII)
_MAX_NAME_CHARS = 200
_MAX_ALIASES = 10_000
_LOCK_S = 10.0


def read_aliases() -> dict[str, str]:
    """All aliases with the names that they stand for; none of those is an alias itself."""
    try:
        return msgspec.json.decode(_path().read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def add_alias(alias: str, model: str) -> None:
    """From now on `alias` is another name of `model`; it may have been one of something else.

    Args:
        alias: letters, digits, `_`, `-`, `.`, with `/` and one `:` between them.
        model: what `resolve` takes, or an alias.

    Raises:
        InvalidInput: it cannot be an alias, or belongs to the catalog; or there are too many.
        ModelError: the cache cannot be written.
        ResourceExhausted: the disk is full.
    """
    if len(alias) > _MAX_NAME_CHARS or not _NAME.fullmatch(alias):
        raise InvalidInput(f"{alias[:_MAX_NAME_CHARS]!r} cannot be the name of a model", parameter="destination")
    if alias in CATALOG:
        raise InvalidInput(f"{alias!r} is a model of the catalog; choose another name", parameter="destination")
    with _locked():
        aliases = read_aliases()
        target = aliases.get(model, model)
        if alias == target:
            raise InvalidInput(f"{alias!r} cannot be another name of itself", parameter="destination")
        if len(aliases) >= _MAX_ALIASES and alias not in aliases:
            raise InvalidInput(f"there are {_MAX_ALIASES} aliases already; delete some", parameter="destination")
        _write(aliases | {alias: target})


def remove_alias(alias: str) -> bool:
    """Forgets an alias; false if there was none of this name. The model stays.

    Raises:
        ModelError: the cache cannot be written.
    """
    if alias not in read_aliases():
        return False
    with _locked():
        aliases = read_aliases()
        target = aliases.pop(alias, None)
        _write(aliases)
    return target is not None


def _write(aliases: dict[str, str]) -> None:
    path = _path()
    replacement = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path, None):
        try:
            replacement.write_bytes(msgspec.json.encode(aliases))
            os.replace(replacement, path)
        finally:
            replacement.unlink(missing_ok=True)


@contextmanager
def _locked() -> Generator[None]:
    path = _path()
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


def _path() -> Path:
    return models_dir() / "aliases.json"
