"""The models that are served or lie on this disk, by all of their names. It blocks; call it on a thread of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.errors import InvalidInput, ModelNotFound
from stoker.models.aliases import add_alias, read_aliases
from stoker.models.catalog import CATALOG
from stoker.models.removal import remove_model
from stoker.models.store import list_models
from stoker.runtime.registry import Registry, ServedModel


@dataclass(frozen=True, slots=True)
class LocalModel:
    """One name of a model."""

    name: str
    path: Path
    size_bytes: int
    served: ServedModel | None = None
    """None = it only lies on the disk."""


class LocalModels:
    """What can be listed, shown, deleted and given another name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def all(self) -> list[LocalModel]:
        """The served models under their ids, then the downloads, then the aliases.

        Raises:
            ModelNotLoaded: a served model is still loading.
        """
        own = [_of_served(served, served.model_id) for served in self._registry.models]
        by_name = {model.name: model for model in own}
        for found in list_models():
            by_name.setdefault(found.name, LocalModel(found.name, found.path, found.size_bytes))
        for alias, target in read_aliases().items():
            if (model := by_name.get(target) or self._served(target)) is not None:
                by_name.setdefault(alias, LocalModel(alias, model.path, model.size_bytes, model.served))
        return list(by_name.values())

    def find(self, name: str) -> LocalModel:
        """The model of exactly this name or alias.

        Raises:
            ModelNotFound: neither is one served under it, nor does one lie on this disk.
            ModelNotLoaded: a served model is still loading.
        """
        model = self._served(name) or next((model for model in self.all() if model.name == name), None)
        if model is None:
            raise ModelNotFound(f"model '{name}' not found", model=name, parameter="model")
        return model

    def serving(self, name: str) -> ServedModel:
        """The model that answers to a name or alias.

        Raises:
            ModelNotFound: nothing is served under it.
        """
        try:
            return self._registry.resolve(name)
        except ModelNotFound:
            if (target := read_aliases().get(name)) is None:
                raise
            return self._registry.resolve(target)

    def delete(self, name: str) -> None:
        """Removes a download, or an alias.

        Raises:
            ModelNotFound: nothing has this name.
            InvalidInput: it is being served, or is no download of ours.
            ModelError: the disk refuses.
        """
        is_alias = name in read_aliases()
        if not is_alias and self.find(name).path in {model.path for model in self.all() if model.served}:
            raise InvalidInput(f"model '{name}' is being served: it cannot be deleted now", parameter="model")
        remove_model(name)

    def copy(self, source: str, destination: str) -> None:
        """Makes `destination` another name of `source`.

        Raises:
            ModelNotFound: there is no `source`.
            InvalidInput: `destination` cannot be a name, or is one of another model.
        """
        model = self.find(source)
        if any(other.name == destination for other in self.all()) and destination not in read_aliases():
            raise InvalidInput(f"model '{destination}' exists already", parameter="destination")
        add_alias(destination, source if source == model.name or source in CATALOG else model.name)

    def _served(self, name: str) -> LocalModel | None:
        served = next((served for served in self._registry.models if name in served.names), None)
        return None if served is None else _of_served(served, name)


def _of_served(served: ServedModel, name: str) -> LocalModel:
    card = served.runtime.card
    return LocalModel(name, Path(card.path), card.size_bytes, served)
