"""Every model that is here, named or not: those of a folder, the downloads, and presets of them. It fetches nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.models.aliases import read_aliases
from stoker.models.gguf import is_model_name, model_stem, part_paths
from stoker.models.library import names_in_library
from stoker.models.presets import read_presets
from stoker.models.store import InstalledModel, list_models, size_of_all


@dataclass(frozen=True, slots=True)
class DiscoveredModel:
    """A model that can be opened as it is."""

    model: str
    """What it is opened as: its path, or the name of a preset."""
    names: tuple[str, ...]
    """The first one is its own; the others are short names and aliases."""
    path: Path


def discover_models(folder: Path | None) -> list[DiscoveredModel]:
    """The models below the folder first, then the downloads, then the presets whose base model is one of them."""
    found = [*(find_models(folder) if folder is not None else ()), *list_models()]
    aliases = read_aliases()
    models = [
        DiscoveredModel(str(each.path), _all_names((each.name, *names_in_library(each.name)), aliases), each.path)
        for each in found
    ]
    return [*models, *_presets(models)]


def _all_names(names: tuple[str, ...], aliases: Mapping[str, str]) -> tuple[str, ...]:
    return (*names, *(alias for alias, target in aliases.items() if target in names))


def _presets(models: list[DiscoveredModel]) -> Iterator[DiscoveredModel]:
    for name, preset in read_presets().items():
        base = next((model for model in models if _is_called(model, preset.model)), None)
        path = Path(preset.model).expanduser() if base is None else base.path
        if base is not None or path.is_file():
            yield DiscoveredModel(name, (name,), path)


def _is_called(model: DiscoveredModel, name: str) -> bool:
    """A repository without a file means the file of it that is here."""
    return name in model.names or model.names[0].startswith(f"{name}:") or model.names[0] == f"hf:{name}"


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
        yield from (Path(parent, name) for name in names if is_model_name(name))


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Links may lead to where one was, and round in circles."""
    try:
        status = folder.stat()
    except OSError:
        return False
    is_new = (status.st_dev, status.st_ino) not in seen
    seen.add((status.st_dev, status.st_ino))
    return is_new
