"""Packed products on our own kernels: which ones are taken, what they compute, and what happens where they cannot."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from stoker.backends.onnx import OnnxBackend, OnnxOptions, read_signature
from stoker.backends.onnx.runtime import SessionOptions, load_errors, open_session, runtime
from stoker.core.batch import Chunk
from stoker.models.onnx_graph import OnnxGraph, read_onnx_graph
from stoker.models.onnx_products import own_products
from stoker.models.onnx_rows import choose_rows
from tests.onnx_models import OnnxReference, TinyOnnx, write_graph
from tests.onnx_runs import distance, open_backend, run

TOKENS = tuple(range(40, 80))
SIZES = {"x": 2048, "y": 1024}
MAPPING = re.compile(r"packed\.bin\n(?:.*\n)*?Rss: +(\d+) kB")
BLOCKS = ((4, 32), (4, 64), (4, 128), (8, 16), (8, 32), (8, 128))


def library() -> Path:
    found = find_spec("stoker._native")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def codes_and_scales(
    rows: int, columns: int, bits: int, block: int, seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float64]]:
    """Random constants of `MatMulNBits`, and the weights `(rows, columns)` that they are."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (rows, columns // block, block), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, (rows, columns // block)).astype(np.float32)
    weights = (codes.astype(np.float64) - (1 << (bits - 1))) * scales[..., None]
    packed = codes if bits == 8 else codes[..., 0::2] | codes[..., 1::2] << 4
    return packed.astype(np.uint8), scales, weights.reshape(rows, columns)


def product(bits: int, block: int, rows: int, columns: int, **changed: NDArray[Any]) -> Any:
    """A session of one `BlockProduct` on two threads; `changed` are other constants."""
    codes, scales, _ = codes_and_scales(rows, columns, bits, block)
    constants = {"codes": codes, "scales": scales, **changed}
    node = helper.make_node(
        "BlockProduct", ["x", "codes", "scales"], ["y"], domain="stoker", K=columns, N=rows, bits=bits, block_size=block
    )
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("stoker", 1)]
    options = runtime().SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library()))
    content = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return runtime().InferenceSession(content, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("bits", "block"), BLOCKS)
def test_inputs_keep_about_fifteen_bits(bits: int, block: int) -> None:
    session, (_, _, weights) = product(bits, block, 50, 256), codes_and_scales(50, 256, bits, block)
    for shape in ((1, 256), (3, 256), (2, 9, 256), (300, 256), (256,), (0, 256)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32) * 7
        found = session.run(None, {"x": x})[0]
        assert found.shape == (*shape[:-1], 50)
        assert not x.size or distance(found, x.astype(np.float64) @ weights.T) < 6e-5


def test_a_row_does_not_depend_on_its_batch() -> None:
    session = product(4, 32, 600, 320)
    x = np.random.default_rng(1).standard_normal((70, 320)).astype(np.float32)
    whole = session.run(None, {"x": x})[0]
    for count in (1, 2, 7, 8, 9, 33):
        np.testing.assert_array_equal(session.run(None, {"x": x[-count:]})[0], whole[-count:])


def test_what_is_no_number_stays_in_its_row() -> None:
    session = product(4, 32, 20, 64)
    x = np.ones((5, 64), np.float32)
    x[2, 40] = np.nan
    found = session.run(None, {"x": x})[0]
    np.testing.assert_array_equal(found[[0, 1, 3, 4]], session.run(None, {"x": np.ones((4, 64), np.float32)})[0])


def test_constants_of_other_sizes_and_rows_of_another_length_are_refused() -> None:
    codes, scales, _ = codes_and_scales(20, 64, 4, 32)
    for changed in ({"codes": codes[:, :1]}, {"scales": scales[:19]}):
        with pytest.raises(load_errors(), match="no matrix of this size"):
            product(4, 32, 20, 64, **changed)
    with pytest.raises(load_errors(), match="no kernels"):
        product(4, 16, 20, 64)
    with pytest.raises(load_errors(), match="another length"):
        product(4, 32, 20, 64).run(None, {"x": np.ones((1, 32), np.float32)})


OUT_OF_MEMORY = """
import resource
import numpy as np
from stoker.backends.onnx.runtime import load_errors
from tests.unit.backends.test_onnx_products import product

wide, tall = product(4, 32, 16, 4096), product(4, 32, 24576, 64)
x, y = np.ones((256, 64), np.float32), np.zeros((256, 24576), np.float32)

def bound(rows):
    found = tall.io_binding()
    found.bind_input("x", "cpu", 0, np.float32, (rows, 64), x.ctypes.data)
    found.bind_output("y", "cpu", 0, np.float32, (rows, 24576), y.ctypes.data)
    return found

for _ in range(20):
    tall.run_with_iobinding(bound(2))  # all threads have what they need for two rows,
wide.run(None, {"x": np.ones((256, 4096), np.float32)})  # and the rounded rows have their place
whole = bound(256)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 10), -1))
try:
    tall.run_with_iobinding(whole)
    print("computed")
except load_errors() as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
tall.run_with_iobinding(whole)
print("then", y.any() and (y == y[0]).all())
"""
"""Memory ends while threads compute parts of a product."""


@pytest.mark.skipif(
    sys.platform != "linux", reason="limits of memory, and how much there is of it, are asked for there"
)
def test_a_thread_without_memory_fails_the_run_only() -> None:
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    found = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "BlockProduct: bad_alloc" in found.stdout
    assert "then True" in found.stdout


def write_packed(path: Path, *, is_beside: bool = True, **attributes: int) -> Path:
    """A tiny model whose matrices are packed, and `exact.onnx` beside it with the same numbers as floats."""
    write_graph(path, TinyOnnx())
    packed, exact = onnx.load(str(path)), onnx.load(str(path))
    for node, plain in zip(packed.graph.node, exact.graph.node, strict=True):
        weight = next((weight for weight in exact.graph.initializer if [weight.name] == list(plain.input[1:2])), None)
        if node.op_type != "MatMul" or weight is None:
            continue
        columns, rows = weight.dims
        codes, scales, weights = codes_and_scales(rows, columns, 4, 32, seed=rows + columns)
        scale = np.float32(1 / np.linalg.norm(weights, axis=1).mean())
        weight.CopyFrom(numpy_helper.from_array((weights.T * scale).astype(np.float32), weight.name))
        constants = {f"{node.output[0]}.codes": codes, f"{node.output[0]}.scales": scales * scale}
        packed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
        sizes: dict[str, Any] = {"bits": 4, "block_size": 32, "accuracy_level": 4, "K": columns, "N": rows} | attributes
        inputs = [node.input[0], *constants]
        node.CopyFrom(helper.make_node("MatMulNBits", inputs, list(node.output), domain="com.microsoft", **sizes))
    onnx.save(exact, str(path.with_name("exact.onnx")))
    for tensor in packed.graph.initializer:
        if tensor.name.endswith(".scales") or (is_beside and tensor.name.endswith(".codes")):
            set_external_data(tensor, f"{path.stem}.bin")
    onnx.save(packed, str(path))
    return path


def own(path: Path) -> OnnxGraph:
    return own_products(choose_rows(read_onnx_graph(path)))


def open_own(path: Path, operators: Path) -> OnnxBackend:
    graph = own(path)
    sizes: dict[str, Any] = {"context_size": 200, "kv_tokens": 1000, "num_slots": 6, "threads": 1}
    return OnnxBackend(graph, read_signature(graph), OnnxOptions(operators=operators, **sizes))


def test_logits_are_those_of_floats(tmp_path: Path) -> None:
    path = write_packed(tmp_path / "model.onnx")
    expected = OnnxReference(TinyOnnx(), tmp_path / "exact.onnx").logits(list(TOKENS))
    with open_own(path, library()) as backend:
        rows = [run(backend, Chunk(0, 0, TOKENS[:-2], 1)), run(backend, Chunk(0, 38, TOKENS[38:], 2))]
    with open_backend(path) as backend:
        rounded = run(backend, Chunk(0, 0, TOKENS, 3))
    assert distance(np.concatenate(rows), expected[-3:]) < 2e-4
    assert distance(rounded, expected[-3:]) > 1e-3, "ONNX Runtime rounds to 8 bits: the comparison shows who computes"


def test_without_the_library_onnx_runtime_computes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_packed(tmp_path / "model.onnx")
    with caplog.at_level(logging.INFO), open_own(path, tmp_path / "none.so") as backend:
        rows = run(backend, Chunk(0, 0, TOKENS, 3))
    assert "with its own kernels" in caplog.text
    with open_backend(path) as backend:
        np.testing.assert_array_equal(rows, run(backend, Chunk(0, 0, TOKENS, 3)))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are given back there")
def test_codes_that_were_packed_leave_memory(tmp_path: Path) -> None:
    codes, scales, _ = codes_and_scales(1024, 2048, 4, 32)
    weights = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in SIZES.items()]
    sizes: dict[str, Any] = {"K": 2048, "N": 1024, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", **sizes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    for weight in weights:
        set_external_data(weight, "packed.bin")
    proto = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:], weights), opset_imports=opsets)
    proto.ir_version = 10
    onnx.save(proto, str(tmp_path / "packed.onnx"))
    graph = own_products(read_onnx_graph(tmp_path / "packed.onnx"))
    session = open_session(graph, SessionOptions(threads=1, provider="cpu", operators=library()))
    assert session.inner.run(None, {"x": np.ones((1, 2048), np.float32)})[0].any()
    resident = [int(found) for found in MAPPING.findall(Path("/proc/self/smaps").read_text())]
    assert resident, "ONNX Runtime maps the file"
    assert sum(resident) < 512, "of 1024 KiB of codes; the scales, 256 KiB, stay"


def test_only_products_that_there_are_kernels_for_are_taken(tmp_path: Path) -> None:
    def taken(name: str, **options: Any) -> int:
        graph = own(write_packed(tmp_path / f"{name}.onnx", **options))
        if graph.own_content is None:
            return 0
        return sum(node.op_type == "BlockProduct" for node in onnx.load_from_string(graph.own_content).graph.node)

    assert taken("usual") > 10
    assert taken("unset", accuracy_level=0) == taken("usual")
    assert taken("exact", accuracy_level=1) == 0
    assert taken("inside", is_beside=False) == 0
    assert taken("sizes", N=999) == 0
    assert taken("blocks", block_size=16) == 0
    assert taken("order", weight_prepacked=1) == 0, "what the attribute says is not known"


def test_optional_inputs_may_be_named_as_missing(tmp_path: Path) -> None:
    path = write_packed(tmp_path / "model.onnx")
    plain = open_own(path, library())
    proto = onnx.load(str(path), load_external_data=False)
    for node in proto.graph.node:
        if node.op_type == "MatMulNBits":
            node.input.extend(["", "", ""])
    onnx.save(proto, str(path))
    with plain, open_own(path, library()) as backend:
        np.testing.assert_array_equal(run(backend, Chunk(0, 0, TOKENS, 3)), run(plain, Chunk(0, 0, TOKENS, 3)))


def test_products_with_zero_points_stay(tmp_path: Path) -> None:
    path = write_packed(tmp_path / "model.onnx")
    proto = onnx.load(str(path), load_external_data=False)
    nodes = [node for node in proto.graph.node if node.op_type == "MatMulNBits"]
    for node in nodes[1:]:
        node.input.append(nodes[0].input[2])
    onnx.save(proto, str(path))
    content = own(path).own_content
    assert content is not None
    kinds = [node.op_type for node in onnx.load_from_string(content).graph.node]
    assert kinds.count("BlockProduct") == 1
    assert kinds.count("MatMulNBits") == len(nodes) - 1
