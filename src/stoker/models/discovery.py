"""Every model that is here, named or not: those of a folder, the downloads, and presets of them. It fetches nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.models.aliases import read_aliases
from stoker.models.folder import find_models
from stoker.models.library import names_in_library
from stoker.models.presets import read_presets
from stoker.models.store import list_models


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
