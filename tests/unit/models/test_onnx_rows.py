"""Logits of chosen positions only: the changed graph is one for `onnx` too, and computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from stoker.backends.onnx import OnnxBackend, OnnxOptions, max_logits_bytes, read_signature
from stoker.core.batch import Batch, Chunk
from stoker.models.onnx_graph import OnnxGraph, read_onnx_graph
from stoker.models.onnx_rows import ROWS, choose_rows
from tests.onnx_models import TinyOnnx, write_graph

TOKENS = tuple(range(30))


def changed(path: Path, model: TinyOnnx, change: Any = None) -> OnnxGraph:
    write_graph(path, model)
    if change is not None:
        proto = onnx.load(str(path))
        change(proto.graph)
        onnx.save(proto, str(path))
    return choose_rows(read_onnx_graph(path))


def soft_cap(graph: Any) -> None:
    """As Gemma 2 ends: `cap * tanh(logits / cap)`."""
    graph.node[-1].output[0] = "raw"
    graph.initializer.append(numpy_helper.from_array(np.array(30, dtype=np.float32), "cap"))
    graph.node.extend(
        helper.make_node(op, inputs, [output])
        for op, inputs, output in (
            ("Div", ["raw", "cap"], "small"),
            ("Tanh", ["small"], "bent"),
            ("Mul", ["bent", "cap"], "logits"),
        )
    )


@pytest.mark.parametrize("model", [TinyOnnx(), TinyOnnx(attention="plain"), TinyOnnx(external=True)])
@pytest.mark.parametrize("change", [None, soft_cap])
def test_fewer_rows_of_the_same_numbers(tmp_path: Path, model: TinyOnnx, change: Any) -> None:
    if model.external and change:
        pytest.skip("`onnx` would write the weights anew")
    graph = changed(tmp_path / "m.onnx", model, change)
    assert graph.content is not None
    proto = onnx.load_model_from_string(graph.content)
    assert [node.op_type for node in proto.graph.node].count("Gather") > 0
    assert (
        proto.graph.output[0].type.tensor_type.shape.dim[1].dim_param
        == proto.graph.input[-1].type.tensor_type.shape.dim[0].dim_param
    )
    assert graph.inputs[-1].name == ROWS
    whole = read_onnx_graph(tmp_path / "m.onnx")
    options = OnnxOptions(context_size=100, kv_tokens=100, num_slots=2, threads=1)
    rows: list[Any] = []
    for form in (whole, graph):
        signature = read_signature(form)
        assert max_logits_bytes(signature) == (512 if form is whole else 1) * 260 * 4
        with OnnxBackend(form, signature, options) as backend:
            found = [backend.forward(Batch(0, (Chunk(0, 0, TOKENS, 3),)))]
            found += [backend.forward(Batch(0, (Chunk(0, 30, (1,), 1), Chunk(1, 0, TOKENS[:9], 0))))]
            rows.append(np.concatenate(found))
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-4)


def two_ends(graph: Any) -> None:
    graph.node[-1].output[0] = "raw"
    graph.node.append(helper.make_node("Add", ["raw", "raw"], ["logits"]))
    graph.node.append(helper.make_node("Sigmoid", ["raw"], ["other"]))
    graph.node[-2].input[1] = "other"


def reshaped(graph: Any) -> None:
    graph.node[-1].output[0] = "raw"
    graph.node.append(helper.make_node("Softmax", ["raw"], ["logits"]))


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (TinyOnnx(rows="last"), None),
        (TinyOnnx(rows="kept"), None),
        (TinyOnnx(), two_ends),
        (TinyOnnx(), reshaped),
    ],
)
def test_what_is_not_understood_stays_as_it_is(tmp_path: Path, model: TinyOnnx, change: Any) -> None:
    graph = changed(tmp_path / "m.onnx", model, change)
    assert graph.content is None
    assert all(value.name != ROWS for value in graph.inputs)


def test_a_large_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.models.onnx_rows._MAX_FILE_BYTES", 1000)
    assert changed(tmp_path / "m.onnx", TinyOnnx()).content is None
