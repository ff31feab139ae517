"""Small steps that the tests of the ONNX backend share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.onnx import OnnxBackend, OnnxOptions, read_signature
from stoker.core.batch import Batch, CacheOp, Chunk
from stoker.core.stages import Mark, no_mark
from stoker.models.onnx_graph import read_onnx_graph
from stoker.models.onnx_links import follow_links
from stoker.models.onnx_rows import choose_rows
from tests.onnx_models import TinyOnnx, write_graph
from tests.reference.native_runs import Rows


def open_backend(path: Path, **options: Any) -> OnnxBackend:
    """A graph on one thread."""
    defaults: dict[str, Any] = {"context_size": 200, "kv_tokens": 1000, "num_slots": 6, "threads": 1}
    mark: Mark = options.pop("mark", no_mark)
    graph = follow_links(choose_rows(read_onnx_graph(path)))
    signature = read_signature(graph)
    table = read_onnx_graph(path.with_name("embed_tokens.onnx")) if signature.row_width else None
    return OnnxBackend(graph, signature, OnnxOptions(**(defaults | options)), table=table, mark=mark)


def open_tiny(folder: Path, model: TinyOnnx, **options: Any) -> OnnxBackend:
    """A model of `tests.onnx_models`."""
    write_graph(folder / "model.onnx", model)
    return open_backend(folder / "model.onnx", **options)


def run(backend: OnnxBackend, *chunks: Chunk, ops: Sequence[CacheOp] = ()) -> Rows:
    """The rows of one batch."""
    return backend.forward(Batch(0, chunks, tuple(ops))).copy()


def distance(found: Any, expected: Any) -> float:
    """The norm of the difference, in norms of what is expected."""
    return float(np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected))
