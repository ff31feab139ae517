"""LoRA adapters as GGUF files: whether one is whole and fits a model, and what names its content. It applies nothing.

An adapter has two small matrices for each large one W that it changes, A and B: under it the model computes with
W + scale · alpha / rank · B·A (arXiv:2106.09685). The keys are those that llama.cpp's `convert_lora_to_gguf.py` writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NoReturn, TypeAlias

from stoker.errors import AdapterInvalid, ModelError
from stoker.models.gguf import GGUFFile, read_gguf

Shape: TypeAlias = tuple[int, ...]
FileVersion: TypeAlias = tuple[int, int, int]
"""Differs when a file is replaced or written to: inode, bytes, time of the last change."""

_A, _B = ".lora_a", ".lora_b"
_EMBEDDING = "token_embd.weight"
"""A lookup, not a product: there A is what is looked up."""
_KEY_BYTES = 16
_MAX_RANK = 1 << 12
"""Far above what is trained; each row of a step takes memory for it."""
_WHAT = "A LoRA adapter in GGUF is needed; llama.cpp's convert_lora_to_gguf.py makes one"


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """What an adapter must fit: a model's architecture, and the shapes of its tensors in the file's order."""

    architecture: str
    shapes: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class LoraFile:
    """An adapter that fits."""

    path: Path
    key: str
    """Names its content: the same for every copy of the file, under any name."""
    rank: int
    """The largest one of its matrices."""
    alpha: float
    """0 = the product counts as it is."""
    num_matrices: int
    """Number of the model's matrices that the adapter changes."""
    size_bytes: int
    version: FileVersion
    """What the file was when it was read."""


def lora_target(files: Iterable[GGUFFile]) -> LoraTarget:
    """What adapters of a model must fit.

    Args:
        files: all parts of the model.
    """
    parts = list(files)
    shapes = {name: tensor.shape for part in parts for name, tensor in part.tensors.items()}
    return LoraTarget(parts[0].architecture, shapes)


def read_lora(path: Path, target: LoraTarget) -> LoraFile:
    """Reads and checks all of an adapter's file.

    Raises:
        AdapterInvalid: there is no such file, it is damaged, or it is no adapter for this model; says which.
    """
    try:
        with read_gguf(path) as file:
            pairs = _pairs(file, target)
            alpha = file.get_float("adapter.lora.alpha") or 0.0
            if not isfinite(alpha):
                _fail(path, f"its alpha is {alpha}")
            rank = max(_check_pair(path, name, a, b, target) for name, (a, b) in pairs.items())
            version = file_version(path)
            key = content_key(path)
            if file_version(path) != version:
                _fail(path, "it was changed while it was being read")
            return LoraFile(path, key, rank, alpha, len(pairs), file.size_bytes, version)
    except ModelError as error:
        raise AdapterInvalid(f"{error.message.removesuffix('.')}. {_WHAT}", path=str(path)) from error


def content_key(path: Path) -> str:
    """What names the content of a file, in hexadecimal.

    Raises:
        AdapterInvalid: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_KEY_BYTES)).hexdigest()
    except OSError as error:
        _fail(path, f"it cannot be read ({error.strerror})", error)


def file_version(path: Path) -> FileVersion:
    """What the file is now.

    Raises:
        AdapterInvalid: there is none.
    """
    try:
        found = path.stat()
    except OSError as error:
        _fail(path, f"it cannot be read ({error.strerror})", error)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _pairs(file: GGUFFile, target: LoraTarget) -> dict[str, tuple[Shape, Shape]]:
    """The shapes of A and B by the tensor that they change."""
    kind, adapter = file.get_str("general.type"), file.get_str("adapter.type")
    if kind != "adapter" or adapter != "lora":
        what = f"an adapter of type {adapter!r}" if kind == "adapter" else "a model"
        _fail(file.path, f"it is {what}. {_WHAT}")
    if "adapter.alora.invocation_tokens" in file.metadata:
        _fail(file.path, "it is an activated LoRA (aLoRA), which holds for a part of the prompt only")
    if file.architecture != target.architecture:
        _fail(file.path, f"it is for models of architecture {file.architecture}, not {target.architecture}")
    found = {name: tensor.shape for name, tensor in file.tensors.items()}
    stray = next((name for name in found if not name.endswith((_A, _B))), None)
    if stray is not None:
        _fail(file.path, f"its tensor `{stray}` is neither an A nor a B")
    bases = dict.fromkeys(name[: -len(_A)] for name in found)
    missing = next((name for base in bases for name in (base + _A, base + _B) if name not in found), None)
    if missing is not None:
        _fail(file.path, f"its tensor `{missing}` is missing")
    if not bases:
        _fail(file.path, "it has no tensors")
    return {base: (found[base + _A], found[base + _B]) for base in bases}


def _check_pair(path: Path, name: str, a: Shape, b: Shape, target: LoraTarget) -> int:
    """The rank of one pair, if it fits."""
    base = target.shapes.get(name)
    if base is None:
        _fail(path, f"it changes `{name}`, which this model does not have: it was made for another one")
    if len(base) < 2 or len(a) != len(base) or len(b) != len(base):
        _fail(path, f"`{name}` is not a matrix that an adapter could change")
    if name == _EMBEDDING:
        # (hidden, vocabulary): A is (rank, vocabulary), B is (hidden, rank); libllama has both turned around.
        fits = (base[0], base[1]) == (b[1], a[1]) and a[0] == b[0]
        rank = a[0]
    else:
        fits = (a[0], b[1]) == (base[0], base[1]) and a[1] == b[0] and a[2:] == b[2:] == base[2:]
        rank = a[1]
    if fits and rank > _MAX_RANK:
        _fail(path, f"`{name}` has rank {rank}, and {_MAX_RANK} is allowed")
    if not fits:
        _fail(path, f"A {a} and B {b} do not fit `{name}` {base} of this model")
    return rank


def _fail(path: Path, what: str, cause: BaseException | None = None) -> NoReturn:
    raise AdapterInvalid(f"the adapter {path} cannot be used: {what}", path=str(path)) from cause
