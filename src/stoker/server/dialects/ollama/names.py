"""Conversion between the model names of Ollama's clients and those of Stoker."""

from __future__ import annotations

from stoker.models.catalog import HUB_PREFIX
from stoker.models.naming import HUB_WORDS, LATEST, own_name
from stoker.server.dialects.ollama.types import NameRequest
from stoker.server.fields import required

__all__ = ["name_with", "ollama_name", "own_name", "required_name"]


def ollama_name(name: str) -> str:
    """A model's name in Ollama's form, which always has a tag; the inverse of `own_name`.

    >>> ollama_name("smollm2"), ollama_name("hf:org/repo:m.gguf")
    ('smollm2:latest', 'hf.co/org/repo:m.gguf')
    """
    name = HUB_WORDS[0] + name.removeprefix(HUB_PREFIX) if name.startswith(HUB_PREFIX) else name
    return name if ":" in name else name + LATEST


def name_with(name: str, adapter: str) -> str:
    """The name of a model with an adapter, from the model's name in Ollama's form.

    >>> name_with("smollm2:latest", "sql")
    'smollm2:sql'
    """
    return f"{name.removesuffix(LATEST)}:{adapter}"


def required_name(wire: NameRequest) -> str:
    """Stoker's name of the model that a request names.

    Raises:
        InvalidInput: the request names no model.
    """
    return own_name(required(wire.model or wire.name, "model"))
