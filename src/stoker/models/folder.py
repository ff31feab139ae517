"""The models that lie in a folder of the user's. None of them is opened."""

from __future__ import annotations

import re
from pathlib import Path

from stoker.models.gguf import part_paths
from stoker.models.store import InstalledModel

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_PROJECTOR = "mmproj"
_MAX_FILES = 10_000


def find_models(folder: Path) -> list[InstalledModel]:
    """Every `.gguf` file in a folder and below it, by name; parts of one model are one, and projectors are none.

    A model is called like its file, without `.gguf` and without the number of its part; of two with one name, the one
    whose path comes first is found. A folder that is not there has no models.
    """
    found: dict[str, InstalledModel] = {}
    files = sorted(file for file in folder.rglob("*.gguf") if not _is_other(file.relative_to(folder)))
    for path in files[:_MAX_FILES]:
        parts = part_paths(path)
        if path != parts[0] or not all(part.is_file() for part in parts):
            continue
        name = _PART.sub("", path.stem)
        found.setdefault(name, InstalledModel(name, path, sum(part.stat().st_size for part in parts)))
    return [found[name] for name in sorted(found)]


def _is_other(file: Path) -> bool:
    """A projector, or hidden, as downloads under way are."""
    return file.name.startswith(_PROJECTOR) or any(part.startswith(".") for part in file.parts)
