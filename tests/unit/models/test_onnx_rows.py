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


def rounded_head(graph: Any) -> tuple[Any, str]:
    """The head, and 8-bit weights for it with their scale and zero point as further constants."""
    head = graph.node[-1]
    weights = next(tensor for tensor in graph.initializer if tensor.name == head.input[1])
    values = numpy_helper.to_array(weights)
    scale = np.float32(np.abs(values).max() / 127)
    weights.CopyFrom(numpy_helper.from_array(np.round(values / scale).astype(np.int8), weights.name))
    graph.initializer.append(numpy_helper.from_array(np.array(scale, dtype=np.float32), "w.scale"))
    graph.initializer.append(numpy_helper.from_array(np.array(0, dtype=np.int8), "w.zero"))
    return head, weights.name


def dynamic(graph: Any) -> None:
    """As `model_quantized.onnx` ends: the input is rounded while it is computed."""
    head, weights = rounded_head(graph)
    x = head.input[0]
    graph.node.remove(head)
    graph.node.extend(
        [
            helper.make_node("DynamicQuantizeLinear", [x], ["x.codes", "x.scale", "x.zero"]),
            helper.make_node("MatMulInteger", ["x.codes", weights, "x.zero", "w.zero"], ["sums"]),
            helper.make_node("Cast", ["sums"], ["sums.single"], to=1),
            helper.make_node("Mul", ["x.scale", "w.scale"], ["scales"]),
            helper.make_node("Mul", ["sums.single", "scales"], ["logits"]),
        ]
    )


def restored(graph: Any) -> None:
    """As QDQ graphs end: weights are made floats first, somewhere before."""
    head, weights = rounded_head(graph)
    node = helper.make_node("DequantizeLinear", [weights, "w.scale", "w.zero"], ["w.floats"])
    graph.node.insert(0, node)
    head.input[1] = "w.floats"


CHANGES = [None, soft_cap, dynamic, restored]


@pytest.mark.parametrize(
    ("model", "change"),
    [
        *((TinyOnnx(attention=attention), change) for attention in ("fused", "plain") for change in CHANGES),
        (TinyOnnx(external=True), None),
    ],
)
def test_fewer_rows_of_the_same_numbers(tmp_path: Path, model: TinyOnnx, change: Any) -> None:
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
            found = [backend.forward(Batch(0, (Chunk(0, 0, TOKENS, 3),))).copy()]
            found += [backend.forward(Batch(0, (Chunk(0, 30, (1,), 1), Chunk(1, 0, TOKENS[:9], 0))))]
            rows.append(np.concatenate(found))
    # What is rounded with a scale for all positions is rounded otherwise for some of them.
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=0.05 if change is dynamic else 1e-4)


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
