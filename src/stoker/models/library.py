"""Well-known models by the names that Ollama's users know, each with its repository on the hub. It fetches nothing.

A name is `family:size`; the family alone means its usual size. Behind the size there may be another quantization, as in
`qwen3:4b-q8_0`. Sizes in `library.csv` are rounded, those of KV are computed from the shape of the model.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from stoker.models.catalog import HUB_PREFIX, CatalogEntry
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.naming import LATEST

_FILE = Path(__file__).with_name("library.csv")
_OTHER_QUANTIZATION = re.compile(r"(?P<name>[^:]+:[^:]+?)-(?P<quantization>i?q\d\w*|bf16|f16|f32|mxfp4)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model of the hub that has a short name."""

    name: str
    is_usual: bool
    """The family's name alone means this size."""
    repo: str
    quantization: str
    """Which file of the repository, see `choose_file`."""
    architecture: str
    """As GGUF files call it."""
    size_bytes: int
    """Of the file, about."""
    kv_bytes_per_token: int
    """With 16-bit keys and values, about; 0 = it keeps none."""
    context: int
    """Longest sequence that it was trained for, in tokens."""
    license: str
    abilities: tuple[str, ...]

    @property
    def family(self) -> str:
        return self.name.partition(":")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All short names, the full one first."""
        return (self.name, self.family) if self.is_usual else (self.name,)

    @property
    def source(self) -> str:
        """What `resolve` takes for it."""
        return f"{HUB_PREFIX}{self.repo}:{self.quantization}"


@cache
def library() -> Mapping[str, KnownModel]:
    """All of them by name, such as `qwen3:4b`, the families in the order of the file."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        models = [_known(row) for row in csv.DictReader(file)]
    return MappingProxyType({model.name: model for model in models})


def known_model(name: str) -> KnownModel | None:
    """The model of this name; None if it is not a well-known one.

    >>> known_model("llama3.2").name, known_model("Qwen3:4B-q8_0").source
    ('llama3.2:3b', 'hf:Qwen/Qwen3-4B-GGUF:Q8_0')
    """
    plain = name.lower().removesuffix(LATEST)
    if not re.match(r"[a-z]", plain) or "/" in plain or len(plain) > 100:
        return None
    found = next((model for model in library().values() if plain in model.names), None)
    return found or _other_quantization(plain)


def names_in_library(hub_name: str) -> Iterator[str]:
    """The short names of a downloaded file, which is called `hf:org/repo:file`."""
    repo, _, file = hub_name.removeprefix(HUB_PREFIX).partition(":")
    for model in library().values():
        if model.repo == repo and model.quantization.lower() in file.lower():
            yield from model.names


def _other_quantization(plain: str) -> KnownModel | None:
    asked = _OTHER_QUANTIZATION.fullmatch(plain)
    base = library().get(asked["name"]) if asked else None
    if asked is None or base is None:
        return None
    quantization = asked["quantization"].upper()
    size_bytes = round(base.size_bytes * _bits(quantization) / _bits(base.quantization))
    return replace(base, name=plain, is_usual=False, quantization=quantization, size_bytes=size_bytes)


def _bits(quantization: str) -> float:
    """Bits of a weight, its share of scales and of larger matrices included, about."""
    digits = re.search(r"\d+", quantization)
    bits = int(digits[0]) if digits else 4
    return bits if bits >= 16 else bits + 0.8


def _known(row: Mapping[str, str]) -> KnownModel:
    return KnownModel(
        name=row["name"],
        is_usual=row["usual"] == "yes",
        repo=row["repo"],
        quantization=row["quantization"],
        architecture=row["architecture"],
        size_bytes=round(float(row["size_gb"]) * 1e9),
        kv_bytes_per_token=round(float(row["kv_kib"]) * 1024),
        context=round(float(row["context_k"]) * 1024),
        license=row["license"],
        abilities=tuple(row["abilities"].split()),
    )


_USUAL_CONTEXT = 8192
_COMPUTE_BYTES = 320 << 20
"""Activations and logits of one step: those of a vocabulary of 150,000 tokens."""


def needs_of(model: KnownModel | CatalogEntry) -> MemoryNeeds:
    """What the model takes with one request of the usual length at a time; when it is loaded, its file says exactly."""
    return MemoryNeeds(
        model=model.name,
        ctx_size=min(model.context, _USUAL_CONTEXT),
        kv_tokens=None,
        parallel=1,
        spare_kv_tokens=0,
        weights_bytes=model.size_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        compute_bytes=min(_COMPUTE_BYTES, model.size_bytes),
    )
