"""Takes models out of the cache again. Files that a user brought stay where they are."""

from __future__ import annotations

from pathlib import Path

import filelock

from stoker.errors import ModelError, ModelFileNotFound
from stoker.models.aliases import remove_alias
from stoker.models.cache import lock_path, receipt_path, writing
from stoker.models.hub_choice import meant_download
from stoker.models.library import names_in_library
from stoker.models.presets import remove_preset
from stoker.models.store import downloaded_parts, list_models


def remove_model(name: str) -> None:
    """Removes a downloaded model with all its parts, or an alias or a preset alone.

    Args:
        name: as `list_models` gives it, an alias, a preset, a well-known name, or see `meant_download`.

    Raises:
        ModelFileNotFound: nothing in the cache has this name.
        ModelError: it is being downloaded at this moment, or the cache cannot be written.
    """
    if remove_alias(name) or remove_preset(name):
        return
    models = list_models()
    meant = meant_download(name, [model.name for model in models])
    found = next((each for each in models if {name, meant} & {each.name, *names_in_library(each.name)}), None)
    if found is None:
        raise ModelFileNotFound(f"no model {name!r} in the cache: there is nothing to delete", path=name)
    for path in downloaded_parts(found.path):
        _remove(path)


def _remove(path: Path) -> None:
    """The receipt goes first: without its file it would say nothing, without it the file counts for nothing."""
    lock = filelock.FileLock(lock_path(path), timeout=0)
    with writing(path, None):
        try:
            lock.acquire()
        except filelock.Timeout:
            raise ModelError(f"{path} is being downloaded at this moment", path=str(path)) from None
        try:
            receipt_path(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        finally:
            lock.release()
