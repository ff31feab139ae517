"""A loaded model under its names, as whoever answers requests sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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


def served_names(model: str, *further: str) -> tuple[str, ...]:
    """The names under which a model given as `model` is served.

    `model` itself is the id. Aliases: the last part of a path or hub name, without `.gguf`; then `further`.

    >>> served_names("/models/tiny.Q4.gguf")
    ('/models/tiny.Q4.gguf', 'tiny.Q4')
    """
    names = (model, re.split(r"[/\\:]", model)[-1].removesuffix(".gguf"), *further)
    return tuple(dict.fromkeys(name for name in names if name))


def without_adapter(asked: str, names: Iterable[str]) -> str:
    """The model of what a client asks for: a model's name, or that with `:` and the name of an adapter behind it.

    >>> without_adapter("smollm2:sql", ["smollm2"]), without_adapter("a:b", ["a", "a:b"])
    ('smollm2', 'a:b')
    """
    bases = [name for name in names if asked == name or asked.startswith(f"{name}:")]
    return max(bases, key=len, default=asked)


def adapter_in(asked: str, names: Iterable[str]) -> str | None:
    """The adapter that a client asks for with the model's name. `latest`, which Ollama's clients add, is none.

    >>> adapter_in("smollm2:sql", ["smollm2"]), adapter_in("smollm2:latest", ["smollm2"])
    ('sql', None)
    """
    adapter = asked.removeprefix(without_adapter(asked, names)).removeprefix(":")
    return adapter if adapter not in ("", "latest") else None
