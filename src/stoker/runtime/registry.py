"""Which model answers to which name; it starts and closes the runtimes and knows no wire format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stoker.errors import ModelNotFound
from stoker.runtime.base import Runtime
from stoker.runtime.request_metrics import RequestMetrics


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A runtime under the names by which clients may ask for it."""

    names: tuple[str, ...]
    """The first one is its id; the others are aliases."""
    runtime: Runtime
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    """What became of its requests; whoever submits them keeps it."""

    @property
    def model_id(self) -> str:
        return self.names[0]


class Registry:
    """The served models: one for now.

    With one model any name is taken to mean it, as llama-server does; `strict` refuses names that are not its own.
    """

    def __init__(self, served: ServedModel, *, strict: bool = False) -> None:
        self._served = served
        self._strict = strict

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return (self._served,)

    def resolve(self, model: str | None) -> ServedModel:
        """The model that answers a request naming `model`; `None` and the empty string name no model.

        Raises:
            ModelNotFound: strict, and nothing is served under that name.
        """
        return self.find(model) if model and self._strict else self._served

    def find(self, name: str) -> ServedModel:
        """The model of exactly this name or alias.

        Raises:
            ModelNotFound: nothing is served under that name.
        """
        if name in self._served.names:
            return self._served
        known = ", ".join(self._served.names)
        raise ModelNotFound(f"The model `{name}` is not served here. Served: {known}", model=name, parameter="model")

    async def start(self) -> None:
        """Loads every model.

        Raises:
            StokerError: a model cannot be loaded.
        """
        await self._served.runtime.start()

    async def close(self) -> None:
        """Closes every runtime; running requests end with an error."""
        await self._served.runtime.close()


def served_names(model: str, *further: str) -> tuple[str, ...]:
    """The names under which a model given as `model` is served.

    `model` itself is the id. Aliases: the last part of a path or hub name, without `.gguf`; then `further`.

    >>> served_names("/models/tiny.Q4.gguf")
    ('/models/tiny.Q4.gguf', 'tiny.Q4')
    """
    names = (model, re.split(r"[/\\:]", model)[-1].removesuffix(".gguf"), *further)
    return tuple(dict.fromkeys(name for name in names if name))
