"""Graphs as other exporters write them: each is computed as it should be, or refused with a word that helps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stoker.core.batch import Chunk, CopyPrefix, Truncate
from stoker.errors import BackendError, ModelError, ModelFileInvalid, ModelUnsupported
from tests.onnx_models import OnnxReference, TinyOnnx, write_graph
from tests.onnx_runs import distance, open_backend, run

Change = Callable[[Any], None]
A = tuple(int(token) for token in np.random.default_rng(3).integers(0, 256, 40))
B = tuple(int(token) for token in np.random.default_rng(4).integers(0, 256, 40))


def written(folder: Path, model: TinyOnnx, change: Change) -> Path:
    path = folder / "model.onnx"
    write_graph(path, model)
    proto = onnx.load(str(path))
    change(proto.graph)
    onnx.save(proto, str(path))
    return path


def value(graph: Any, name: str) -> Any:
    return next(value for value in (*graph.input, *graph.output) if value.name == name)


def add_input(graph: Any, name: str, kind: int, shape: list[Any]) -> None:
    graph.input.append(helper.make_tensor_value_info(name, kind, shape))


def set_dim(graph: Any, axis: int, size: int, *names: str) -> None:
    for each in (*graph.input, *graph.output):
        if each.name.startswith(names):
            each.type.tensor_type.shape.dim[axis].Clear()
            each.type.tensor_type.shape.dim[axis].dim_value = size


def narrow_ids(graph: Any) -> None:
    """int32 ids, masks and positions, as some builders write them."""
    for name in ("input_ids", "attention_mask", "position_ids"):
        old = value(graph, name)
        old.type.tensor_type.elem_type = TensorProto.INT32
        for node in graph.node:
            node.input[:] = [f"{name}.wide" if each == name else each for each in node.input]
        graph.node.insert(0, helper.make_node("Cast", [name], [f"{name}.wide"], to=TensorProto.INT64))


def half_logits(graph: Any) -> None:
    last = next(node for node in graph.node if node.output[0] == "logits")
    last.output[0] = "logits.single"
    graph.node.append(helper.make_node("Cast", ["logits.single"], ["logits"], to=TensorProto.FLOAT16))
    value(graph, "logits").type.tensor_type.elem_type = TensorProto.FLOAT16


def add_hidden_states(graph: Any) -> None:
    graph.output.insert(0, helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["batch", "new", 64]))
    graph.node.append(helper.make_node("Identity", ["x1"], ["hidden"]))


def add_token_types(graph: Any) -> None:
    """Another embedding on top, which is 0 for the type 0."""
    add_input(graph, "token_type_ids", TensorProto.INT64, ["batch", "new"])
    table = np.stack([np.zeros(64, dtype=np.float32), np.full(64, 100, dtype=np.float32)])
    graph.initializer.append(numpy_helper.from_array(table, "types"))
    node = next(node for node in graph.node if node.output[0] == "x0")
    at = list(graph.node).index(node)
    node.output[0] = "x0.plain"
    graph.node.insert(at + 1, helper.make_node("Gather", ["types", "token_type_ids"], ["x0.types"]))
    graph.node.insert(at + 2, helper.make_node("Add", ["x0.plain", "x0.types"], ["x0"]))


def lengths_as_inputs(rank: int) -> Change:
    """`GroupQueryAttention` is told its lengths from outside, and there is no mask."""

    def change(graph: Any) -> None:
        made = {"num_seen", "num_seen_less", "seqlens_k", "mask_shape", "total", "total_length"}
        kept = [node for node in graph.node if node.output[0] not in made]
        for node in kept:
            node.input[:] = ["total_sequence_length" if name == "total_length" else name for name in node.input]
        del graph.node[:]
        graph.node.extend(kept)
        graph.input.remove(value(graph, "attention_mask"))
        if rank == 2:
            for node in graph.node:
                node.input[:] = ["seqlens_flat" if name == "seqlens_k" else name for name in node.input]
            graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
            graph.node.insert(0, helper.make_node("Reshape", ["seqlens_k", "flat"], ["seqlens_flat"]))
        add_input(graph, "seqlens_k", TensorProto.INT32, ["batch", 1][:rank])
        add_input(graph, "total_sequence_length", TensorProto.INT32, [1][: rank - 1])

    return change


def one_sequence(graph: Any) -> None:
    set_dim(graph, 0, 1, "input_ids", "attention_mask", "position_ids", "past", "present", "logits")


def one_token(graph: Any) -> None:
    set_dim(graph, 1, 1, "input_ids", "position_ids", "logits")


def merged(graph: Any) -> None:
    """Optimum's older merged decoders: of the branch for later tokens, only the last one's logits can be believed."""
    add_input(graph, "use_cache_branch", TensorProto.BOOL, [1])
    head = next(node for node in graph.node if node.output[0] == "logits")
    head.output[0] = "right"
    for name, values in (("last", [-1]), ("end", [2**31]), ("axis", [1])):
        graph.initializer.append(numpy_helper.from_array(np.array(values), f"branch.{name}"))
    graph.node.append(helper.make_node("Slice", ["right", "branch.last", "branch.end", "branch.axis"], ["right.last"]))
    branches: list[Any] = []
    for name, source in (("then", "right.last"), ("otherwise", "right")):
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "rows", 260])
        branches.append(helper.make_graph([helper.make_node("Identity", [source], [name])], name, [], [output]))
    graph.node.append(
        helper.make_node("If", ["use_cache_branch"], ["logits"], then_branch=branches[0], else_branch=branches[1])
    )


PLAIN, FUSED = TinyOnnx(attention="plain"), TinyOnnx()


@pytest.mark.parametrize(
    ("model", "change", "limit"),
    [
        pytest.param(PLAIN, narrow_ids, 1e-5, id="int32"),
        pytest.param(PLAIN, half_logits, 1e-3, id="fp16 logits"),
        pytest.param(PLAIN, add_hidden_states, 1e-5, id="another output"),
        pytest.param(FUSED, add_hidden_states, 1e-5, id="another output, in place"),
        pytest.param(PLAIN, add_token_types, 1e-5, id="token types"),
        pytest.param(FUSED, lengths_as_inputs(1), 1e-5, id="seqlens_k"),
        pytest.param(FUSED, lengths_as_inputs(2), 1e-5, id="seqlens_k in a column"),
        pytest.param(PLAIN, one_sequence, 1e-5, id="one sequence"),
        pytest.param(FUSED, one_sequence, 1e-5, id="one sequence, in place"),
        pytest.param(PLAIN, one_token, 1e-5, id="one token"),
        pytest.param(FUSED, one_token, 1e-5, id="one token, in place"),
        pytest.param(PLAIN, merged, 1e-5, id="merged"),
    ],
)
def test_what_others_write_is_computed(tmp_path: Path, model: TinyOnnx, change: Change, limit: float) -> None:
    """A prompt in two chunks, rows of several positions, and two sequences of different lengths side by side."""
    path = written(tmp_path, model, change)
    write_graph(tmp_path / "plain.onnx", model)
    reference = OnnxReference(model, tmp_path / "plain.onnx")
    a, b = reference.logits(list(A)), reference.logits(list(B))
    with open_backend(path) as backend:
        assert distance(run(backend, Chunk(0, 0, A[:20], 4)), a[16:20]) < limit
        rows = run(backend, Chunk(0, 20, A[20:25], 2), Chunk(3, 0, B[:9], 1))
        assert distance(rows, [a[23], a[24], b[8]]) < limit
        for at in range(3):
            rows = run(backend, Chunk(0, 25 + at, (A[25 + at],), 1), Chunk(3, 9 + at, (B[9 + at],), 1))
            assert distance(rows, [a[25 + at], b[9 + at]]) < limit
        again = run(backend, Chunk(0, 10, A[10:13], 0), ops=[Truncate(0, 10)])
        assert again.shape == (0, 260)
        assert distance(run(backend, Chunk(0, 13, A[13:14], 1)), a[13:14]) < limit


def without_cache(graph: Any) -> None:
    """Every past is empty, and the present is not used."""
    for name in [each.name for each in graph.input if each.name.startswith("past_")]:
        empty = numpy_helper.from_array(np.zeros((1, 2, 0, 16), dtype=np.float32), name)
        graph.initializer.append(empty)
        graph.input.remove(value(graph, name))
    for name in [each.name for each in graph.output if each.name.startswith("present.")]:
        graph.output.remove(value(graph, name))


@pytest.mark.parametrize("rows", ["all", "last"])
def test_a_graph_without_a_cache_computes_every_text_anew(tmp_path: Path, rows: Any) -> None:
    """As the same model with a cache: chunks, a copied prefix, a cut, and two sequences side by side."""
    model = TinyOnnx(attention="plain", rows=rows)
    path = written(tmp_path, model, without_cache)
    write_graph(tmp_path / "plain.onnx", model)
    reference = OnnxReference(model, tmp_path / "plain.onnx")
    a, b = reference.logits(list(A)), reference.logits(list(B))
    with open_backend(path) as backend:
        assert not backend.info.traits.can_export
        assert backend.info.kv_bytes_per_token == 0
        assert distance(run(backend, Chunk(0, 0, A[:20], 1)), a[19:20]) < 1e-5
        found = run(backend, Chunk(0, 20, A[20:22], 2), Chunk(3, 0, B[:9], 1))
        assert distance(found, [a[20], a[21], b[8]]) < 1e-5
        found = run(backend, Chunk(2, 15, A[15:16], 1), Chunk(3, 9, B[9:10], 1), ops=[CopyPrefix(0, 2, 15)])
        assert distance(found, [a[15], b[9]]) < 1e-5
        assert distance(run(backend, Chunk(0, 10, A[10:13], 1), ops=[Truncate(0, 10)]), a[12:13]) < 1e-5


def no_lengths(graph: Any) -> None:
    lengths_as_inputs(1)(graph)
    graph.input.remove(value(graph, "seqlens_k"))


def other_heads(graph: Any) -> None:
    value(graph, "present.1.key").type.tensor_type.shape.dim[3].dim_value = 32


def half_present(graph: Any) -> None:
    value(graph, "present.0.value").type.tensor_type.elem_type = TensorProto.FLOAT16


def rename(old: str, new: str) -> Change:
    def change(graph: Any) -> None:
        for each in (*graph.input, *graph.output):
            each.name = each.name.replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(no_lengths, "neither `attention_mask` nor `seqlens_k`", id="no lengths"),
        pytest.param(other_heads, r"`past_key_values\.1\.key` is float32 \['batch', 2, 'past', 16\].*32\]", id="heads"),
        pytest.param(half_present, r"`present\.0\.value` is float16", id="types"),
        pytest.param(
            lambda g: set_dim(g, 2, 128, "past"), r"past_key_values\.0\.key` .* positions cannot vary", id="static"
        ),
        pytest.param(lambda g: set_dim(g, 0, 4, "input_ids"), r"input_ids` is \[4, 'new'\]", id="four sequences"),
        pytest.param(lambda g: set_dim(g, 1, 64, "input_ids"), r"input_ids` is \['batch', 64\]", id="64 tokens"),
        pytest.param(
            rename("values.0.key", "values.0.decoder.key"), r"values\.0\.decoder\.key` has no known", id="seq2seq"
        ),
        pytest.param(rename("past_key_values.0.key", "past_0"), "`past_0` has no known meaning", id="joined past"),
        pytest.param(
            lambda g: add_input(g, "use_cache_branch", TensorProto.INT64, [1]),
            "`use_cache_branch` is int64",
            id="branch",
        ),
        pytest.param(
            lambda g: add_input(g, "pixel_values", TensorProto.FLOAT, ["n"]), "`pixel_values` has no", id="images"
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises((ModelUnsupported, ModelFileInvalid), match=message):
        open_backend(written(tmp_path, FUSED, change))


@pytest.mark.parametrize("size", [1, 3, 100, 2000, 5000])
def test_a_truncated_graph_is_told_from_an_unsupported_one(tmp_path: Path, size: int) -> None:
    write_graph(tmp_path / "model.onnx", FUSED)
    content = (tmp_path / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[:size])
    with pytest.raises(ModelFileInvalid, match=r"model\.onnx"):
        open_backend(tmp_path / "model.onnx")


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_are_an_error_of_ours_or_none(tmp_path: Path, seed: int) -> None:
    """In what describes the graph; weights are numbers of any kind."""
    write_graph(tmp_path / "model.onnx", TinyOnnx(external=True))
    content = bytearray((tmp_path / "model.onnx").read_bytes())
    for at in np.random.default_rng(seed).integers(0, len(content), 3):
        content[at] ^= 0xFF
    (tmp_path / "model.onnx").write_bytes(content)
    with suppress(ModelError, BackendError), open_backend(tmp_path / "model.onnx") as backend:
        assert run(backend, Chunk(0, 0, (1, 2, 3), 2)).shape == (2, backend.info.vocab_size)
