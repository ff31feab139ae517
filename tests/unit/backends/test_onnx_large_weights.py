"""Weights beyond 2 and 4 GiB in another file: mapped where they lie, and never copied as a whole.

```
model.onnx_data    | 260 real rows of the embedding |  4.5 GiB that nobody reads: a hole in the file | all the others |
```
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.external_data_helper import set_external_data

from stoker.core.batch import Chunk
from tests.onnx_models import OnnxReference, TinyOnnx, write_graph
from tests.onnx_runs import distance, open_backend, run

MODEL = TinyOnnx(num_layers=1)
TOKENS = tuple(range(40, 80))
NUM_ROWS = (9 << 29) // (MODEL.hidden * 4)
"""Of the embedding: 4.5 GiB."""
MAX_GROWTH = 256 << 20


def write_large(path: Path) -> None:
    """The same model; its table of embeddings has rows that stand for no token, and everything else comes after it."""
    write_graph(path, MODEL)
    proto = onnx.load(str(path))
    with (path.parent / "model.onnx_data").open("wb") as file:
        tensors = sorted(proto.graph.initializer, key=lambda tensor: tensor.name != "embedding")
        for tensor in tensors:
            if tensor.data_type != TensorProto.FLOAT or not tensor.dims:
                continue
            is_table = tensor.name == "embedding"
            if is_table:
                tensor.dims[0] = NUM_ROWS
            begin, size = file.tell(), 4 * int(np.prod(tensor.dims))
            file.write(tensor.raw_data)
            file.truncate(begin + size)
            set_external_data(tensor, "model.onnx_data", offset=begin, length=size)
            tensor.ClearField("raw_data")
            file.seek(-(-(begin + size) // 4096) * 4096)
    onnx.save(proto, str(path))


def growth_of_peak(path: Path, options: dict[str, Any]) -> tuple[int, np.ndarray[Any, Any]]:
    """In a process of its own: how much more memory it ever had than before, and rows of logits."""
    before = peak_bytes()
    with open_backend(path, **options) as backend:
        rows = run(backend, Chunk(0, 0, TOKENS, 3))
    return peak_bytes() - before, rows


def peak_bytes() -> int:
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_above_4_gib_are_mapped_and_not_copied(tmp_path: Path) -> None:
    write_large(tmp_path / "model.onnx")
    data = (tmp_path / "model.onnx_data").stat()
    assert data.st_size > 9 << 29
    if data.st_blocks * 512 > 1 << 30:
        pytest.skip("this file system has no holes")
    write_graph(tmp_path / "plain.onnx", MODEL)
    expected = OnnxReference(MODEL, tmp_path / "plain.onnx").logits(list(TOKENS))
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        growth, rows = processes.submit(growth_of_peak, tmp_path / "model.onnx", {}).result(60)
    assert distance(rows, expected[-3:]) < 1e-5
    assert growth < MAX_GROWTH
