"""A loaded model under its names, as the code that answers requests sees it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from stoker.models.catalog import HUB_PREFIX
from stoker.models.library import known_model
from stoker.runtime.base import Runtime
from stoker.runtime.request_metrics import RequestMetrics


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A runtime under the names by which clients may ask for it."""

    names: tuple[str, ...]
    """The first name is the model's id; the others are aliases."""
    runtime: Runtime
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    """Counts of the model's requests, kept by the code that submits them."""

    @property
    def model_id(self) -> str:
        return self.names[0]


def served_names(name: str, *further: str) -> tuple[str, ...]:
    """The names of a model that has a configured name: that name is its id.

    Aliases: the name's last part, without a file's ending; then `further`.

    >>> served_names("hf:org/repo:tiny.gguf", "small")
    ('hf:org/repo:tiny.gguf', 'tiny', 'small')
    """
    return tuple(dict.fromkeys(each for each in (name, short_name(name), *further) if each))


def names_of_source(source: str, *further: str) -> tuple[str, ...]:
    """The names of a model without a configured name: the last part of its path, not the folder.

    >>> names_of_source("/models/tiny.Q4.gguf"), names_of_source("hf:org/repo")
    (('tiny.Q4', '/models/tiny.Q4.gguf'), ('hf:org/repo', 'repo'))
    """
    if source.startswith(HUB_PREFIX):
        return served_names(source, *further)
    return served_names(short_name(source), source, *further)


def short_name(model: str) -> str:
    """The last part of a path or of a name of the hub, without the file's ending; for `.` the name of the folder.

    >>> short_name("hf:org/repo"), short_name("./exported/"), short_name("model.onnx"), short_name("/m/TINY.GGUF")
    ('repo', 'exported', 'model', 'TINY')
    >>> short_name("qwen3:4b")
    'qwen3:4b'
    """
    if known_model(model) is not None:
        return model
    last = re.split(r"[/\\:]", model.rstrip("/\\"))[-1]
    if last in (".", ".."):
        with suppress(OSError):  # the working directory was removed
            last = os.path.basename(os.path.abspath(model)) or last
    return re.sub(r"\.(gguf|onnx)$", "", last, flags=re.IGNORECASE)


def without_adapter(asked: str, names: Iterable[str]) -> str:
    """The model's name in what a client asks for, which is `MODEL` or `MODEL:ADAPTER`.

    >>> without_adapter("smollm2:sql", ["smollm2"]), without_adapter("a:b", ["a", "a:b"])
    ('smollm2', 'a:b')
    """
    bases = [name for name in names if asked == name or asked.startswith(f"{name}:")]
    return max(bases, key=len, default=asked)


def adapter_in(asked: str, names: Iterable[str]) -> str | None:
    """The adapter's name in `MODEL:ADAPTER`; None if there is none. `latest`, which Ollama's clients add, is none.

    >>> adapter_in("smollm2:sql", ["smollm2"]), adapter_in("smollm2:latest", ["smollm2"])
    ('sql', None)
    """
    adapter = asked.removeprefix(without_adapter(asked, names)).removeprefix(":")
    return adapter if adapter not in ("", "latest") else None
