"""`stoker export`: what it says, where, and with which exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.cli.conftest import Stoker
from tests.unit.export.written import Written


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_0", head_type="Q8_0"))


def test_it_says_what_has_become_of_the_weights_and_where(stoker: Stoker, path: Path, tmp_path: Path) -> None:
    done = stoker("export", str(path), str(tmp_path / "onnx"))
    assert (done.code, done.out) == (0, f"{tmp_path / 'onnx'}\n")
    assert "14 matrices of Q4_0: 4 bits in blocks of 32, exact\n" in done.err
    assert "2 matrices of Q8_0: 8 bits in blocks of 32, exact\n" in done.err
    assert "for sequences of up to 4096 tokens" in done.err
    assert "writing onnx" in done.err


def test_options_arrive(stoker: Stoker, path: Path, tmp_path: Path) -> None:
    more = "--attention plain --kv-type f16 --weights int4 --activations f32 --ctx-size 100"
    done = stoker("export", str(path), str(tmp_path / "onnx"), *more.split())
    assert done.code == 0
    assert "2 matrices of Q8_0: 4 bits in blocks of 32, rounded by " in done.err
    written = Written(tmp_path / "onnx")
    assert "GroupQueryAttention" not in written.ops
    assert written.inputs["past_key_values.0.key"].type.tensor_type.elem_type == 10
    assert written.tensors["rope.0.cos"].shape == (100, 8)
    (level,) = {a.i for node in written.model.graph.node for a in node.attribute if a.name == "accuracy_level"}
    assert level == 1


def test_a_second_time_needs_force(stoker: Stoker, path: Path, tmp_path: Path) -> None:
    assert stoker("export", str(path), str(tmp_path / "onnx")).code == 0
    again = stoker("export", str(path), str(tmp_path / "onnx"))
    assert (again.code, again.out) == (2, "")
    assert "is not empty; name another folder, or add --force" in again.err
    assert stoker("export", str(path), str(tmp_path / "onnx"), "--force").code == 0


def test_a_model_that_is_none_is_the_models_fault(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("no model")
    done = stoker("export", str(tmp_path / "m.gguf"), str(tmp_path / "onnx"))
    assert done.code == 3
    assert "m.gguf is not a GGUF file" in done.err
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("option", ["--attention mha", "--kv-type q8", "--weights q4_0", "--ctx-size 0"])
def test_impossible_options(stoker: Stoker, path: Path, tmp_path: Path, option: str) -> None:
    done = stoker("export", str(path), str(tmp_path / "onnx"), *option.split())
    assert done.code == 2
    assert option.split()[0] in done.err


def test_without_the_package_it_says_how_to_get_it(
    stoker: Stoker, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("stoker.export")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = stoker("export", str(path), str(tmp_path / "onnx"))
    assert done.code == 2
    assert "pip install 'stoker[export]'" in done.err
