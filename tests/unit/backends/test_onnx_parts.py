"""The parts of the ONNX backend one by one: placing inputs, rows, memory, batches, providers."""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from stoker.backends.onnx import read_signature
from stoker.backends.onnx.batches import split_by_padding, split_by_rows
from stoker.backends.onnx.in_place import RowLedger
from stoker.backends.onnx.memory import GRANULE, KVMemory
from stoker.backends.onnx.runtime import SessionOptions, candidates, open_session, runtime
from stoker.backends.onnx.signature import KVTensor, Signature
from stoker.core.batch import Chunk
from stoker.errors import ConfigError, ModelError, ModelFileInvalid, ModelUnsupported
from stoker.models.onnx_graph import read_onnx_graph
from tests.onnx_models import TinyOnnx, write_graph


def signature_of(path: Path, change: Any = None, model: TinyOnnx | None = None, **known: Any) -> Signature:
    write_graph(path, model or TinyOnnx())
    if change is not None:
        proto = onnx.load(str(path))
        change(proto.graph)
        onnx.save(proto, str(path))
    return read_signature(read_onnx_graph(path), **known)


def rename(graph: Any, old: str, new: str) -> None:
    for value in (*graph.input, *graph.output):
        value.name = value.name.replace(old, new)


def add_input(graph: Any, name: str, kind: int = TensorProto.INT64, shape: Any = ("batch", "new")) -> None:
    graph.input.append(helper.make_tensor_value_info(name, kind, list(shape)))


def test_everything_is_placed(tmp_path: Path) -> None:
    found = signature_of(tmp_path / "m.onnx", model=TinyOnnx(attention="plain", kv_type="float16"))
    assert {role: port.name for role, port in found.inputs.items()} == {
        "ids": "input_ids",
        "mask": "attention_mask",
        "positions": "position_ids",
    }
    assert found.kv[1] == KVTensor("past_key_values.0.value", "present.0.value", 2, 16)
    assert (found.vocab_size, found.kv_type, found.is_in_place, found.can_pad) == (260, np.float16, False, True)
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(("past", "present"), [("past.", "present."), ("past_key_values_", "present_key_values_")])
def test_other_names_of_the_cache(tmp_path: Path, past: str, present: str) -> None:
    def change(graph: Any) -> None:
        rename(graph, "past_key_values.", past)
        rename(graph, "present.", present)

    assert signature_of(tmp_path / "m.onnx", change).kv[0].past == f"{past}0.key"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: add_input(g, "encoder_hidden_states"), "input `encoder_hidden_states` has no known meaning"),
        (lambda g: add_input(g, "past_conv.0", TensorProto.FLOAT), "input `past_conv.0` has no known meaning"),
        (lambda g: add_input(g, "position_ids", TensorProto.FLOAT), "input `position_ids` is float32"),
        (lambda g: rename(g, "input_ids", "inputs_embeds"), "input `inputs_embeds` is int64"),
        (lambda g: rename(g, "input_ids", "input_features"), "input `input_features` has no known meaning"),
        (lambda g: rename(g, "logits", "hidden"), "no output `logits`"),
        (lambda g: rename(g, "present.1.key", "other"), "`past_key_values.1.key` has no output of its kind"),
        (lambda g: g.input[2].type.tensor_type.shape.dim.pop(), r"`past_key_values.0.key` is \['batch', 2, 'past'\]"),
        (lambda g: setattr(g.input[2].type.tensor_type, "elem_type", TensorProto.BFLOAT16), "are bfloat16, float32"),
        (
            lambda g: setattr(g.node[0], "domain", "org.example"),
            "custom operators .* does not have: org.example:Gather",
        ),
    ],
)
def test_what_cannot_be_placed_is_named(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises((ModelUnsupported, ModelFileInvalid), match=message):
        signature_of(tmp_path / "m.onnx", change)


def test_sizes_that_the_graph_leaves_open(tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        for value in graph.input[2:]:
            value.type.tensor_type.shape.dim[1].dim_param = "heads"
            value.type.tensor_type.shape.dim[3].dim_param = "size"

    found = signature_of(tmp_path / "m.onnx", change, num_kv_heads=2, head_size=16)
    assert (found.kv[0].num_heads, found.kv[0].head_size) == (2, 16)
    with pytest.raises(ModelUnsupported, match=r"nor `config\.json` says how many heads"):
        signature_of(tmp_path / "m.onnx", change)


class Rows:
    """A ledger over rows whose content is the name of a slot."""

    def __init__(self, num_slots: int) -> None:
        self.content: list[str] = [""] * num_slots
        self.num_moved = 0
        self.ledger = RowLedger(num_slots, lambda row: len(self.content[row]), self.swap)

    def swap(self, one: int, other: int) -> None:
        self.num_moved += 1
        self.content[one], self.content[other] = self.content[other], self.content[one]

    def fill(self, slot: int, length: int) -> None:
        self.ledger.settle(slot)
        self.content[self.ledger.row(slot)] = chr(97 + slot) * length


def test_slots_keep_their_content_wherever_they_go() -> None:
    rng = random.Random(0)
    for _ in range(200):
        rows, filled = Rows(8), dict[int, int]()
        for _ in range(20):
            slot = rng.randrange(8)
            if slot in filled and rng.random() < 0.4:
                rows.content[rows.ledger.row(slot)] = ""
                del filled[slot]
            elif slot not in filled:
                filled[slot] = rng.randrange(1, 9)
                rows.fill(slot, filled[slot])
            if filled:
                chosen = rng.sample(sorted(filled), rng.randrange(1, len(filled) + 1))
                first = rows.ledger.gather(chosen)
                assert sorted(rows.ledger.row(s) for s in chosen) == list(range(first, first + len(chosen)))
            assert all(rows.content[rows.ledger.row(s)] == chr(97 + s) * n for s, n in filled.items())


def test_who_comes_and_goes_moves_little() -> None:
    rows = Rows(8)
    for slot in (6, 1, 4):
        rows.fill(slot, 5)
        rows.ledger.gather([other for other in (6, 1, 4) if rows.content[rows.ledger.row(other)]])
    assert rows.num_moved == 0, "an empty slot settles beside the others"
    rows.ledger.gather([6, 4])
    assert rows.num_moved <= 1
    before = rows.num_moved
    rows.ledger.gather([4, 6])
    assert rows.num_moved == before


def memory(**sizes: int) -> KVMemory:
    tensors = [KVTensor("a", "a", 2, 16), KVTensor("b", "b", 2, 16), KVTensor("c", "c", 1, 32)]
    options = {"num_rows": 4, "max_tokens": 2000, "kv_tokens": 300, **sizes}
    return KVMemory(tensors, np.dtype(np.float32), **options)


def fill(found: KVMemory, row: int, length: int, value: float) -> None:
    for index in range(3):
        found.tensor(index)[row, :, :length] = value + index
    found.set_length(row, length)


def test_rows_are_copied_swapped_and_written() -> None:
    found = memory()
    assert found.capacity == 32 * GRANULE
    fill(found, 0, 100, 1.0)
    fill(found, 2, 30, 10.0)
    found.copy(0, 1, 60)
    assert (found.tensor(2)[1, :, :60] == 3.0).all()
    found.swap(0, 2)
    assert (found.length(0), found.length(2)) == (30, 100)
    assert all((found.tensor(i)[2, :, :100] == 1.0 + i).all() for i in range(3))
    assert all((found.tensor(i)[0, :, :30] == 10.0 + i).all() for i in range(3))
    state = memoryview(found.read(2, 10, 50))
    assert found.write(0, 30, 70, state)
    assert (found.tensor(1)[0, :, 30:70] == 2.0).all()
    assert not found.write(0, 70, 80, state)
    assert not found.write(0, 70, 120, state)
    assert found.length(0) == 70


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_what_is_used_takes_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    found = memory(num_rows=64, max_tokens=100_000, kv_tokens=5000)
    for row in range(0, 64, 8):
        fill(found, row, 500, 1.0)
    per_token = 3 * 32 * 4
    assert resident() - before < 8 * 500 * per_token * 2 + (8 << 20)
    for row in range(64):
        fill(found, row, 2000, 1.0)
        found.set_length(row, 0)
        found.trim()
    assert found.num_touched <= 5000 + 64 * GRANULE
    assert resident() - before < 12_000 * per_token + (8 << 20)


def test_trimming_spares_what_is_held() -> None:
    found = memory(kv_tokens=10)
    fill(found, 0, 300, 5.0)
    fill(found, 1, 200, 6.0)
    found.set_length(0, 100)
    found.trim()
    assert found.num_touched == 300
    assert (found.tensor(2)[0, :, :100] == 7.0).all()
    assert (found.tensor(2)[1, :, :200] == 8.0).all()


def test_chunks_for_graphs_that_give_one_row() -> None:
    chunk = Chunk(3, 10, (1, 2, 3, 4, 5), 3)
    assert split_by_rows(chunk, gives_all_rows=True) == [chunk]
    assert split_by_rows(chunk, gives_all_rows=False) == [
        Chunk(3, 10, (1, 2, 3), 1),
        Chunk(3, 13, (4,), 1),
        Chunk(3, 14, (5,), 1),
    ]
    prompt = Chunk(0, 0, (1, 2), 0)
    assert split_by_rows(prompt, gives_all_rows=False) == [prompt]


def test_groups_by_padding() -> None:
    chunks = [Chunk(slot, start, (1,), 1) for slot, start in enumerate((10, 50, 12, 49, 9))]
    assert [[c.slot for c in group] for group in split_by_padding(chunks, 5)] == [[1, 3], [2, 0, 4]]
    assert [[c.slot for c in group] for group in split_by_padding(chunks, 0)] == [[1], [3], [2], [0], [4]]
    assert list(split_by_padding(chunks, None)) == [chunks]
    assert list(split_by_padding([], None)) == list(split_by_padding([], 3)) == []


def test_providers_by_policy(caplog: pytest.LogCaptureFixture) -> None:
    """S1-42: the fastest that is there, then the next; the CPU for what is not, with a warning."""
    everything = ["CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"]
    assert candidates("auto", everything) == candidates("tensorrt", everything) == ("tensorrt", "cuda")
    assert candidates("auto", everything[:2]) == candidates("cuda", everything) == ("cuda",)
    assert candidates("auto", ["AzureExecutionProvider", "CPUExecutionProvider"]) == ()
    assert candidates("cpu", everything) == ()
    assert caplog.text == ""
    assert candidates("cuda", everything[:1]) == ()
    assert "has no provider cuda, the CPU computes" in caplog.text
    with pytest.raises(ConfigError, match=r"no provider 'gpu' \(did you mean cuda\?\); known: auto, tensorrt, cuda"):
        candidates("gpu", everything)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("CUDA", "cuda"), ("cdua", "cuda"), ("CPUExecutionProvider", "cpu"), ("tensor-rt", "tensorrt"), ("Auto", "auto")],
)
def test_a_slip_in_a_provider_is_understood(typed: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"no provider '{typed}' \(did you mean {meant}\?\)"):
        candidates(typed, ["CPUExecutionProvider"])
    with pytest.raises(ConfigError, match="no provider 'xyz'; known"):
        candidates("xyz", ["CPUExecutionProvider"])


def test_a_provider_that_fails_is_replaced_by_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This build has no CUDA, and falls back silently when it is asked for it."""
    write_graph(tmp_path / "m.onnx", TinyOnnx())
    monkeypatch.setattr(runtime(), "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with caplog.at_level(logging.WARNING):
        session = open_session(read_onnx_graph(tmp_path / "m.onnx"), SessionOptions(threads=1))
    assert (session.provider, session.device) == ("cpu", "cpu")
    assert "the provider cuda cannot run m.onnx, the CPU computes" in caplog.text


@pytest.mark.parametrize("wanted", ["auto", "tensorrt"])
def test_cuda_computes_where_tensorrt_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: str
) -> None:
    """S1-42: builds for CUDA always list TensorRT, whose libraries are usually missing."""
    asked: list[list[str]] = []

    def opened(source: Any, options: Any, providers: Any) -> Any:
        asked.append([name if isinstance(name, str) else name[0] for name in providers])
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])

    everything = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(runtime(), "get_available_providers", lambda: everything)
    monkeypatch.setattr(runtime(), "InferenceSession", opened)
    write_graph(tmp_path / "m.onnx", TinyOnnx())
    session = open_session(read_onnx_graph(tmp_path / "m.onnx"), SessionOptions(threads=1, provider=wanted))
    assert (session.provider, session.device) == ("cuda", "cuda")
    assert asked == [everything, everything[1:]]
    assert "the provider tensorrt cannot run m.onnx, cuda is tried" in caplog.text


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cuda", "tensorrt", "openvino"])
def test_what_this_build_has_is_what_computes(tmp_path: Path, wanted: str, caplog: pytest.LogCaptureFixture) -> None:
    """S1-42, with the real list: a build for CPUs names further providers (Azure's), which run no graph here."""
    assert "CPUExecutionProvider" in runtime().get_available_providers()
    write_graph(tmp_path / "m.onnx", TinyOnnx())
    with caplog.at_level(logging.WARNING):
        session = open_session(
            read_onnx_graph(tmp_path / "m.onnx"), SessionOptions(threads=1, provider=wanted, device_id=2)
        )
    assert (session.provider, session.device, session.device_id) == ("cpu", "cpu", 0)
    assert session.inner.get_providers() == ["CPUExecutionProvider"]
    assert (f"has no provider {wanted}" in caplog.text) == (wanted not in ("auto", "cpu"))
    assert "device 2 is ignored" in caplog.text


def test_an_unknown_provider_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    write_graph(tmp_path / "m.onnx", TinyOnnx())
    for name in ("azure", "CPUExecutionProvider", "gpu", ""):
        with pytest.raises(ConfigError, match=f"no provider '{name}'.*; known: auto, .*cpu"):
            open_session(read_onnx_graph(tmp_path / "m.onnx"), SessionOptions(threads=1, provider=name))


def test_providers_are_tried_in_the_order_that_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    every = ["CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider"]
    assert candidates("openvino,cuda", every) == ("openvino", "cuda")
    assert candidates("openvino,cpu,cuda", every) == ("openvino",)
    assert not caplog.text
    assert candidates("rocm,cuda", every) == ("cuda",)
    assert candidates("rocm,cpu", every) == ()
    assert [record.getMessage().rpartition(", ")[2] for record in caplog.records] == [
        "cuda is tried",
        "the CPU computes",
    ]
    with pytest.raises(ConfigError, match=r"no provider 'cudo'.*did you mean cuda"):
        candidates("cpu,cudo", every)


@pytest.mark.parametrize("fails", [False, True])
def test_a_device_is_asked_for_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """S1-42: the CPU stands behind it, for operators that the device has not, and for a session that fails."""
    asked: list[Any] = []
    real = runtime().InferenceSession

    def opened(source: Any, options: Any, providers: Any) -> Any:
        asked.append(providers)
        if providers[0][0] == "CPUExecutionProvider":
            return real(source, options, providers=providers)
        if fails:
            raise RuntimeError("CUDA failure 101: invalid device ordinal")
        return SimpleNamespace(get_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])

    monkeypatch.setattr(runtime(), "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(runtime(), "InferenceSession", opened)
    write_graph(tmp_path / "m.onnx", TinyOnnx())
    options = SessionOptions(threads=1, provider="cuda", device_id=3, packed_directory=tmp_path / "packed")
    session = open_session(read_onnx_graph(tmp_path / "m.onnx"), options)
    assert asked[0] == [("CUDAExecutionProvider", {"device_id": "3"}), "CPUExecutionProvider"]
    assert (session.provider, session.device_id) == (("cpu", 0) if fails else ("cuda", 3))
    assert ("cannot run m.onnx, the CPU computes: CUDA failure 101" in caplog.text) == fails
    assert (tmp_path / "packed").exists() == fails


def test_without_onnx_runtime_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    runtime.cache_clear()
    with pytest.raises(ModelUnsupported, match=r"pip install 'stoker\[onnx\]'"):
        runtime()


@pytest.mark.parametrize("fault", ["node", "shape"])
def test_what_onnx_runtime_refuses_is_told_in_its_words(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "m.onnx"
    write_graph(path, TinyOnnx())
    proto = onnx.load(str(path))
    if fault == "node":
        proto.graph.node[0].op_type = "NoSuchOperator"
    else:
        proto.graph.initializer[0].dims[0] += 1
    onnx.save(proto, str(path))
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot load .*m\.onnx: .*(NoSuchOperator|embedding)"):
        open_session(read_onnx_graph(path), SessionOptions(threads=1))
