"""What the native executor computes, from the code: architectures and tensor types, and what is libllama's and why."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from stoker import _native
from stoker.backends.native.architectures import ARCHITECTURES, ELSEWHERE, describing
from stoker.models.gguf_types import TENSOR_TYPES, TensorType

_COLUMNS, _ROWS = 8192, 64
"""Of the matrix whose bytes are counted: large enough for what is filled up not to matter."""


def lines() -> Iterator[str]:
    """Lines of the page, in Markdown."""
    yield from ["# Models", "", "What `--backend auto` gives to the native executor; the rest is libllama's.", ""]
    yield from ["## Architectures", "", "| `general.architecture` | models |", "| --- | --- |"]
    yield from (f"| `{name}` | {_models(name)} |" for name in sorted(ARCHITECTURES))
    yield from ["", "## Tensor types", "", "Bits for a weight, with its share of the scales.", ""]
    yield from ["| type | in the file | in memory |", "| --- | --- | --- |"]
    yield from (_type_row(kind) for kind in TENSOR_TYPES.values() if _native.can_pack(kind.number, _COLUMNS))
    yield from ["", "## Left to libllama", "", "| why | `general.architecture` |", "| --- | --- |"]
    reasons: dict[str, list[str]] = {}
    for name, reason in sorted(ELSEWHERE.items()):
        reasons.setdefault(reason, []).append(f"`{name}`")
    yield from (f"| {reason} | {', '.join(names)} |" for reason, names in sorted(reasons.items()))


def _models(architecture: str) -> str:
    """What the first sentence of the function's docstring names."""
    text = inspect.getdoc(describing(architecture)) or ""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


def _type_row(kind: TensorType) -> str:
    in_file = 8 * kind.block_bytes / kind.block_size
    in_memory = 8 * _native.packed_bytes(kind.number, _ROWS, _COLUMNS) / (_ROWS * _COLUMNS)
    return f"| {kind.name} | {in_file:.2f} | {in_memory:.2f} |"
