"""LoRA adapters and control vectors that tests write themselves, and what they do to a model, computed with numpy."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quant_shape_to_byte_shape, quantize
from numpy.typing import NDArray

from stoker.models.gguf import GGUFFile, read_gguf

Pair = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A `(rank, inputs)` and B `(outputs, rank)`."""

_ALIGNMENT = 32
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def random_pairs(
    model: Path, seed: int, *, rank: int = 4, size: float = 0.3, matrices: Sequence[str] = MATRICES
) -> dict[str, Pair]:
    """Low-rank changes of a model's matrices, `size` times as large as what they change, more or less."""
    rng = np.random.default_rng(seed)
    pairs: dict[str, Pair] = {}
    with read_gguf(model) as source:
        shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    for name, shape in shapes.items():
        if any(f".{name}".endswith(f".{matrix}.weight") for matrix in matrices):
            inputs, outputs = shape
            a = rng.normal(0, 1 / np.sqrt(inputs), (rank, inputs)).astype(np.float32)
            b = rng.normal(0, size / np.sqrt(rank), (outputs, rank)).astype(np.float32)
            pairs[name] = (a, b)
    return pairs


def write_adapter(
    path: Path,
    pairs: Mapping[str, Pair],
    *,
    architecture: str = "llama",
    alpha: float | None = 8.0,
    kind: str = "F32",
    **keys: Any,
) -> Path:
    """Writes the file and returns its path.

    Args:
        kind: of the tensors.
        keys: further strings, with `__` for dots; None leaves one out.
    """
    writer = GGUFWriter(path, architecture)
    for key, value in {"general__type": "adapter", "adapter__type": "lora", **keys}.items():
        if value is not None:
            writer.add_string(key.replace("__", "."), value)
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in pairs.items():
        for part, matrix in (("a", a), ("b", b)):
            as_type = GGMLQuantizationType[kind]
            if kind == "Q8_K":  # which the `gguf` package cannot write
                packed = np.zeros(quant_shape_to_byte_shape(matrix.shape, as_type), np.uint8)
            else:
                packed = quantize(matrix, as_type)
            writer.add_tensor(f"{name}.lora_{part}", packed, raw_dtype=as_type)
    return _written(writer, path)


def write_merged(path: Path, model: Path, *changes: tuple[Mapping[str, Pair], float]) -> Path:
    """The model with W + factor · B·A, in F32, in place of each W that changes. A factor is scale · alpha / rank.

    Written by hand: the `gguf` package takes seconds to copy a vocabulary.
    """
    with read_gguf(model) as source:
        header = bytes(source.header_data())
        contents = {name: _merged(source, name, changes) for name in source.tensors}
        first = next(iter(source.tensors)).encode()
        # Before the list of tensors stands the metadata, which stays as it is.
        head = header[: header.index(struct.pack("<Q", len(first)) + first)]
        infos, at = b"", 0
        for name, tensor in source.tensors.items():
            kind = tensor.type.number if _is_kept(name, changes) else int(GGMLQuantizationType.F32)
            infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(tensor.shape))
            infos += struct.pack(f"<{len(tensor.shape)}QIQ", *tensor.shape, kind, at)
            at += -(-len(contents[name]) // _ALIGNMENT) * _ALIGNMENT
        with path.open("wb") as file:
            file.write(head + infos + b"\0" * (-len(head + infos) % _ALIGNMENT))
            for content in contents.values():
                file.write(content + b"\0" * (-len(content) % _ALIGNMENT))
    return path


def _merged(source: GGUFFile, name: str, changes: Sequence[tuple[Mapping[str, Pair], float]]) -> bytes:
    raw = bytes(source.tensor_data(name))
    if _is_kept(name, changes):
        return raw
    tensor = source.tensors[name]
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(tensor.shape[1], -1)
    weights = dequantize(rows, GGMLQuantizationType(tensor.type.number)).astype(np.float32)
    for pairs, factor in changes:
        if name in pairs:
            weights = weights + np.float32(factor) * (pairs[name][1] @ pairs[name][0])
    return weights.astype("<f4").tobytes()


def _is_kept(name: str, changes: Sequence[tuple[Mapping[str, Pair], float]]) -> bool:
    return not any(name in pairs for pairs, _ in changes)


def write_control_vector(path: Path, directions: Mapping[int, NDArray[np.float32]], *, model: str = "llama") -> Path:
    """Writes the file and returns its path. `directions` are by the layer behind which they are added."""
    writer = GGUFWriter(path, "controlvector")
    writer.add_string("controlvector.model_hint", model)
    writer.add_uint32("controlvector.layer_count", len(directions))
    for layer, direction in directions.items():
        writer.add_tensor(f"direction.{layer}", direction)
    return _written(writer, path)


def _written(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
