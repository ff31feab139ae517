"""Writes a graph as `model.onnx` with its weights beside it in `model.onnx.data`, a few megabytes at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stoker.export.graph import Graph, external_tensor

MODEL_NAME, DATA_NAME = "model.onnx", "model.onnx.data"
_ALIGNMENT = 4096
"""Of large tensors, so that they can be mapped; and of small ones too, because there are few of them."""


def write_model(
    graph: Graph, folder: Path, *, name: str, producer: tuple[str, str], advance: Callable[[int], None]
) -> None:
    """Writes both files; one chunk of one matrix is in memory at a time, or one matrix that must be turned.

    Args:
        graph: finished.
        folder: exists, and has neither file.
        name: of the graph.
        producer: name and version of this program.
        advance: told how many more bytes are written.

    Raises:
        OSError: the disk is full, or something else is wrong with it. There is no `model.onnx` then.
    """
    offsets, num_bytes = _layout(graph)
    with (folder / DATA_NAME).open("wb") as file:
        _reserve(file.fileno(), num_bytes)
        for source in graph.sources:
            for tensor, start, values in source.pieces():
                assert values.dtype == tensor.dtype, tensor.name
                file.seek(offsets[tensor.name] + start)
                file.write(np.ascontiguousarray(values).data)
                advance(values.nbytes)
        file.flush()
        os.fsync(file.fileno())
    external = [
        external_tensor(tensor, DATA_NAME, offsets[(tensor.same_bytes_as or tensor).name])
        for tensor in graph.initializers.values()
        if tensor.name in graph.used
    ]
    proto = graph.proto(name, producer, external)
    (folder / MODEL_NAME).write_bytes(proto.SerializeToString())


def num_bytes_of(graph: Graph) -> int:
    """How much `write_model` will tell `advance` in all."""
    offsets, _ = _layout(graph)
    return sum(graph.initializers[name].num_bytes for name in offsets)


def _layout(graph: Graph) -> tuple[dict[str, int], int]:
    """Where each tensor begins that has bytes of its own, and how long the file is."""
    offsets, end = dict[str, int](), 0
    for name, tensor in graph.initializers.items():
        if tensor.same_bytes_as is None:
            offsets[name] = end
            end += -(-tensor.num_bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _reserve(file: int, num_bytes: int) -> None:
    """Takes the room at once: a disk that is too small says so now, and not after minutes of work."""
    reserve = getattr(os, "posix_fallocate", None)
    if reserve is not None and num_bytes:
        reserve(file, 0, num_bytes)
    else:
        os.truncate(file, num_bytes)
