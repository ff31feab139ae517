"""The models that lie in a folder of the user's. None of them is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stoker.models.gguf import model_stem, part_paths
from stoker.models.store import InstalledModel, size_of_all

_PROJECTOR = "mmproj"
_MAX_FILES = 10_000


def find_models(folder: Path) -> list[InstalledModel]:
    """Every `.gguf` file in a folder and below it, by name; parts of one model are one, and projectors are none.

    A model is called like its file, without `.gguf` and without the number of its part; of two with one name, the one
    whose path comes first is found. Links to folders are followed. A folder that is not there has no models, and what
    disappears meanwhile is none.
    """
    found: dict[str, InstalledModel] = {}
    for path in sorted(_files(folder))[:_MAX_FILES]:
        parts = part_paths(path)
        size_bytes = size_of_all(parts) if path == parts[0] else None
        if size_bytes is not None:
            name = model_stem(path)
            found.setdefault(name, InstalledModel(name, path, size_bytes))
    return [found[name] for name in sorted(found)]


def _files(folder: Path) -> Iterator[Path]:
    """Nothing hidden, as downloads under way are."""
    seen: set[tuple[int, int]] = set()
    _is_new(folder, seen)
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in sorted(folders) if name[0] != "." and _is_new(Path(parent, name), seen)]
        yield from (Path(parent, name) for name in names if _is_model(name))


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Links may lead to where one was, and round in circles."""
    try:
        status = folder.stat()
    except OSError:
        return False
    is_new = (status.st_dev, status.st_ino) not in seen
    seen.add((status.st_dev, status.st_ino))
    return is_new


def _is_model(name: str) -> bool:
    lower = name.lower()
    return lower.endswith(".gguf") and not lower.startswith(".") and _PROJECTOR not in lower
