"""The reader of ONNX files against files of the `onnx` package, and against damaged ones."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from stoker.errors import ModelFileInvalid, ModelFileNotFound
from stoker.models.onnx_graph import GraphValue, read_onnx_graph
from stoker.models.protobuf import Message, ProtobufError
from tests.onnx_models import VOCAB_SIZE, TinyOnnx, write_graph


def test_what_a_graph_takes_and_gives(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, TinyOnnx(kv_type="float16"))
    found, proto = read_onnx_graph(path), onnx.load(str(path))
    assert [value.name for value in found.inputs] == [value.name for value in proto.graph.input]
    assert found.inputs[0] == GraphValue("input_ids", "int64", ("batch", "new"))
    assert found.inputs[2] == GraphValue("past_key_values.0.key", "float16", ("batch", 2, "past", 16))
    assert found.outputs[0] == GraphValue("logits", "float32", ("batch", "new", VOCAB_SIZE))
    assert found.operators["com.microsoft", "GroupQueryAttention"] == 2
    assert found.operators["", "MatMul"] == sum(node.op_type == "MatMul" for node in proto.graph.node)
    assert found.weight_files == (path,)
    assert found.weights_bytes == sum(len(tensor.raw_data) for tensor in proto.graph.initializer)


def test_constants_are_no_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, TinyOnnx())
    proto = onnx.load(str(path))
    proto.graph.input.append(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [260, 64]))
    onnx.save(proto, str(path))
    assert "embedding" not in {value.name for value in read_onnx_graph(path).inputs}


def test_operators_of_nested_graphs_count(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    branch = helper.make_graph(
        [helper.make_node("Fancy", [], ["y"], domain="org.example")], "b", [], [info("y", TensorProto.FLOAT, [1])]
    )
    node = helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph([node], "g", [info("x", TensorProto.BOOL, [])], [info("z", TensorProto.FLOAT, [1])])
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    assert read_onnx_graph(tmp_path / "m.onnx").operators == {("", "If"): 1, ("org.example", "Fancy"): 2}


def test_weights_in_other_files(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, TinyOnnx(external=True))
    found = read_onnx_graph(path)
    assert found.weight_files == (path, tmp_path / "m.onnx_data")
    assert found.size_bytes == path.stat().st_size + (tmp_path / "m.onnx_data").stat().st_size
    with (tmp_path / "m.onnx_data").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ModelFileInvalid, match=r"m\.onnx_data cannot be used: it is truncated: it has 1000 bytes"):
        read_onnx_graph(path)
    (tmp_path / "m.onnx_data").unlink()
    with pytest.raises(ModelFileNotFound, match=r"keeps its weights in m\.onnx_data, and there is no such file"):
        read_onnx_graph(path)


def write_misplaced(path: Path, key: str, value: str) -> Path:
    """A graph that says something else about where the first of its weights lie."""
    write_graph(path, TinyOnnx(external=True))
    proto = onnx.load(str(path), load_external_data=False)
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == key).value = value
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../m.onnx_data", "/etc/passwd", ""])
def test_weights_elsewhere_are_refused(tmp_path: Path, location: str) -> None:
    path = write_misplaced(tmp_path / "m.onnx", "location", location)
    with pytest.raises(ModelFileInvalid, match="which is not beside it"):
        read_onnx_graph(path)


@pytest.mark.parametrize("offset", ["-1", "x", "1" * 5000], ids=["negative", "no number", "long"])
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, offset: str) -> None:
    path = write_misplaced(tmp_path / "m.onnx", "offset", offset)
    with pytest.raises(ModelFileInvalid, match="about the place of"):
        read_onnx_graph(path)


def test_a_truncated_file_is_told_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, TinyOnnx())
    whole = path.read_bytes()
    for length in (0, 1, 7, 100, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileInvalid, match=r"m\.onnx cannot be used: .*(truncated|empty)"):
            read_onnx_graph(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:77\nsize 4096\n")
    with pytest.raises(ModelFileInvalid, match=r"Git LFS pointer; .* `git lfs pull`"):
        read_onnx_graph(path)
    path.write_bytes(b"GGUF" * 100)
    with pytest.raises(ModelFileInvalid):
        read_onnx_graph(path)
    path.unlink()
    with pytest.raises(ModelFileNotFound):
        read_onnx_graph(path)


def test_numbers_of_protobuf() -> None:
    found = Message(
        memoryview(b"\x08\xac\x02\x12\x03\x01\x02\x03\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x22\x02hi")
    )
    assert (found.integer(1), found.integers(2), found.integer(3), found.text(4)) == (300, [1, 2, 3], -1, "hi")
    assert (found.integer(9), found.text(9), list(found.messages(9))) == (0, "", [])
    for wrong in (b"\x08", b"\x0b", b"\x0a\x05a", b"\x08" + b"\xff" * 11):
        with pytest.raises(ProtobufError):
            Message(memoryview(wrong))
    with pytest.raises(ProtobufError, match="a number stands where bytes belong"):
        found.text(1)


def test_packed_matrices_count_as_what_they_stand_for(tmp_path: Path) -> None:
    packed = helper.make_tensor("w", TensorProto.UINT8, [64, 2, 16], bytes(2048), raw=True)
    scales = helper.make_tensor("s", TensorProto.FLOAT, [64, 2], bytes(512), raw=True)
    table = helper.make_tensor("t", TensorProto.FLOAT, [10, 3], bytes(120), raw=True)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=64, bits=4)
    info = helper.make_tensor_value_info
    value = (TensorProto.FLOAT, [1, 64])
    graph = helper.make_graph([node, node], "g", [info("x", *value)], [info("y", *value)], [packed, scales, table])
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    found = read_onnx_graph(tmp_path / "m.onnx")
    assert (found.num_parameters, found.weights_bytes) == (64 * 64 + 30, 2048 + 512 + 120)
