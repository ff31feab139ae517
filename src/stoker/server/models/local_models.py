"""The models that are served or on this disk, by all of their names. The functions block: call them on a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from stoker.engine.cards import AdapterCard, ModelCard
from stoker.errors import InvalidInput, ModelFileNotFound, ModelNotFound
from stoker.models.aliases import add_alias, read_aliases
from stoker.models.catalog import CATALOG, HUB_PREFIX
from stoker.models.gguf import part_paths
from stoker.models.hub_choice import meant_download
from stoker.models.library import known_model
from stoker.models.modelfile import with_parameters
from stoker.models.presets import Preset, read_presets, write_preset
from stoker.models.removal import remove_model
from stoker.models.store import list_models
from stoker.runtime.registry import ModelStatus, Registry, ServedModel
from stoker.server.models.entries import loaded_adapters


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model under one of its names."""

    name: str
    path: Path
    size_bytes: int
    served: ServedModel | None = None
    """The loaded model; None = the model is not loaded."""
    card: ModelCard | None = None
    """Card of the model, from when it was last unloaded if it is not loaded; None = it never was loaded."""
    names: tuple[str, ...] = ()
    """The registry's names for the model; empty if the registry does not know the model."""
    adapter: AdapterCard | None = None
    """The LoRA adapter that the name selects; path and size are those of the model itself."""


class LocalModels:
    """All models that clients can list, show, copy and delete: those of the registry and those on disk."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def all(self) -> list[LocalModel]:
        """All models: the registry's under all of their names except paths, then downloads, then aliases.

        Raises:
            ModelNotLoaded: a served model is still loading.
        """
        own = [(status, _registered(status, status.model_id)) for status in self._registry.statuses()]
        by_name = {name: replace(model, name=name) for _, model in own if model is not None for name in _listed(model)}
        for status, model in own:
            if model is not None:
                adapted = [_with_adapter(model, adapter) for adapter in loaded_adapters(status)]
                by_name |= {one.name: one for one in adapted if one.name not in by_name}
        for found in list_models():
            by_name.setdefault(found.name, LocalModel(found.name, found.path, found.size_bytes))
        for alias, target in read_aliases().items():
            if (model := by_name.get(target) or self._served(target)) is not None:
                by_name.setdefault(alias, replace(model, name=alias))
        return list(by_name.values())

    def usable(self) -> list[LocalModel]:
        """The models of `all` that this server can serve. A server with a fixed list of models serves only those.

        Raises:
            ModelNotLoaded: a served model is still loading.
        """
        return [model for model in self.all() if model.names or self._registry.finds_models]

    def find(self, name: str) -> LocalModel:
        """The model of this name or alias, or the download that the name abbreviates.

        Raises:
            ModelNotFound: no model of that name is served or on this disk.
            ModelNotLoaded: a served model is still loading.
        """
        model = self._served(name) or self._on_disk(name)
        if model is None:
            raise ModelNotFound(f"model '{name}' not found", model=name, parameter="model")
        return model

    def registered_name(self, name: str) -> str:
        """The registry's name for a model that a client requests by this name, which may be an alias."""
        try:
            self._registry.find(name)
        except ModelNotFound:
            return read_aliases().get(name, name)
        return name

    def delete(self, name: str) -> None:
        """Removes a download, an alias or a preset.

        Raises:
            ModelNotFound: nothing has this name.
            InvalidInput: the model is being served, or Stoker did not download it.
            ModelError: the files cannot be removed from disk.
        """
        is_name_alone = name in read_aliases() or name in read_presets()
        if not is_name_alone and self.find(name).path in {model.path for model in self.all() if model.served}:
            raise InvalidInput(f"model '{name}' is being served: it cannot be deleted now", parameter="model")
        remove_model(name)

    def copy(self, source: str, destination: str) -> None:
        """Makes `destination` another name of `source`.

        Raises:
            ModelNotFound: there is no model `source`.
            InvalidInput: `destination` is not a valid name, or is the name of another model.
        """
        model = self.find(source)
        if any(other.name == destination for other in self.all()) and destination not in read_aliases():
            raise InvalidInput(f"model '{destination}' exists already", parameter="destination")
        add_alias(destination, source if source == model.name or source in CATALOG else model.name)

    def create(self, name: str, base: str, system: str | None, parameters: Mapping[str, object]) -> None:
        """Creates the preset `name`: the model `base` with its own system prompt and default sampling parameters.

        Raises:
            ModelNotFound: there is no model `base`.
            InvalidInput: the server has a fixed list of models, `name` is not a valid name or is that of another model,
                or a parameter is unknown or out of range.
        """
        if not self._registry.finds_models:
            message = "this server was started with a list of models; `stoker serve` without one finds what is created"
            raise InvalidInput(message, parameter="model")
        presets, path = read_presets(), str(self.find(base).path)
        if name not in presets and any(other.name == name for other in self.all()):
            raise InvalidInput(f"model '{name}' exists already", parameter="model")
        target = read_aliases().get(base, base)
        preset = presets.get(target) or Preset(model=target if can_be_pulled(target) else path)
        if system is not None:
            preset = msgspec.structs.replace(preset, system=system)
        write_preset(name, with_parameters(preset, parameters))

    def _on_disk(self, name: str) -> LocalModel | None:
        by_name = {model.name: model for model in self.all()}
        return by_name.get(name) or by_name.get(meant_download(name, by_name) or "")

    def _served(self, name: str) -> LocalModel | None:
        statuses = self._registry.statuses()
        status = next((status for status in statuses if name in status.spec.names), None)
        if status is not None:
            return _registered(status, name)
        pairs = ((status, adapter) for status in statuses for adapter in loaded_adapters(status))
        return next((_adapted(*pair, name) for pair in pairs if name in _names_with(*pair)), None)


async def look_again(registry: Registry, name: str) -> None:
    """Unloads the model of this name, waits for it, and updates the registry with the model that has the name now."""
    if any(status.model_id == name for status in registry.statuses()):
        await registry.unload(name, waits=True)
    await registry.refresh()


def can_be_pulled(name: str) -> bool:
    """Whether the name can be downloaded: a known name, or a name on the hub."""
    return name in CATALOG or name.startswith(HUB_PREFIX) or known_model(name) is not None


def pullable(name: str) -> str:
    """Returns the name if a client may download it. A path is refused, so that clients cannot probe files on this disk.

    Raises:
        ModelFileNotFound: the name is neither a known name nor one on the hub.
    """
    if can_be_pulled(name):
        return name
    message = (
        f"model '{name}' not found: it is neither a known name (`stoker models --all`) nor of the form hf.co/org/repo"
    )
    raise ModelFileNotFound(message, path=name)


def _registered(status: ModelStatus, name: str) -> LocalModel | None:
    """A model of the registry; None if the model is not loaded and its file or folder no longer exists."""
    names, served = status.spec.names, status.served
    if served is not None:
        card = served.runtime.card
        return LocalModel(name, Path(card.path), card.size_bytes, served, card, names)
    card, path = status.last_card, Path(status.spec.path)
    if status.spec.path and not path.exists():
        return None
    size_bytes = _size_on_disk(status.spec.path) if card is None else card.size_bytes
    return LocalModel(name, path, size_bytes, None, card, names)


def _size_on_disk(path: str) -> int:
    if not path:
        return 0
    files = Path(path).rglob("*") if Path(path).is_dir() else part_paths(Path(path))
    return sum(map(_file_size, files))


def _file_size(path: Path) -> int:
    """Size of a file in bytes; 0 for a folder, and for a file that has just been removed."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _names_with(status: ModelStatus, adapter: AdapterCard) -> tuple[str, ...]:
    return tuple(f"{name}:{adapter.name}" for name in status.spec.names)


def _adapted(status: ModelStatus, adapter: AdapterCard, name: str) -> LocalModel | None:
    model = _registered(status, name.removesuffix(f":{adapter.name}"))
    return None if model is None else _with_adapter(model, adapter)


def _with_adapter(model: LocalModel, adapter: AdapterCard) -> LocalModel:
    return replace(model, name=f"{model.name}:{adapter.name}", adapter=adapter)


def _listed(model: LocalModel) -> Iterator[str]:
    yield model.names[0]
    yield from (name for name in model.names[1:] if Path(name).expanduser().absolute() != model.path.absolute())
