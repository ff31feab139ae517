"""Writes a graph as `model.onnx` with its weights beside it in `model.onnx.data`, a few megabytes at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stoker.export.graph import Graph, external_tensor

MODEL_NAME, DATA_NAME = "model.onnx", "model.onnx.data"
_ALIGNMENT = 4096
"""Alignment of tensors in bytes, so that large ones can be memory-mapped. Small ones are few, so it costs little."""


def write_model(
    graph: Graph, folder: Path, *, name: str, producer: tuple[str, str], advance: Callable[[int], None]
) -> None:
    """Writes both files. One chunk of a matrix is in memory at a time, or one matrix that must be transposed.

    Args:
        graph: a finished graph.
        folder: an existing folder with neither file.
        name: name of the graph.
        producer: name and version of this program.
        advance: called with the number of bytes of each write.

    Raises:
        OSError: the disk is full, or the files cannot be written. `model.onnx` is not complete then.
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
    """The number of bytes that `write_model` reports to `advance` in total."""
    offsets, _ = _layout(graph)
    return sum(graph.initializers[name].num_bytes for name in offsets)


def _layout(graph: Graph) -> tuple[dict[str, int], int]:
    """The offset of each tensor that has its own bytes, and the size of the data file, in bytes."""
    offsets, end = dict[str, int](), 0
    for name, tensor in graph.initializers.items():
        if tensor.same_bytes_as is None:
            offsets[name] = end
            end += -(-tensor.num_bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _reserve(file: int, num_bytes: int) -> None:
    """Allocates the whole file at once, so that a disk that is too small fails now, and not after minutes of work."""
    reserve = getattr(os, "posix_fallocate", None)
    if reserve is not None and num_bytes:
        reserve(file, 0, num_bytes)
    else:
        os.truncate(file, num_bytes)
