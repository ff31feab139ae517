"""Measuring and loading decide by one function which backend computes: whatever the file, they agree."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from gguf import PoolingType

from stoker.backends.llama import gpu
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, ModelError, ModelFileInvalid, ModelUnsupported
from stoker.loading.choosing import load_model, measure
from tests.bert_models import tiny_bert, write_bert
from tests.onnx_models import write_onnx_folder
from tests.recurrent_models import write_mamba
from tests.tiny_models import TinyModel, write_tiny_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    yield
    gpu.gpu_name_by_child.cache_clear()


def tiny(**values: Any) -> Callable[[Path], Path]:
    return lambda folder: write_tiny_model(folder / "m.gguf", TinyModel(**values))


def other_pre_tokenizer(folder: Path) -> Path:
    path = write_tiny_model(folder / "m.gguf", TinyModel())
    path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0gpt-2", b"\x05\0\0\0\0\0\0\0other"))
    return path


def bert(pooling: PoolingType) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return write_bert(folder / "m.gguf", tiny_bert(has_classifier=pooling is PoolingType.RANK), pooling)

    return write


NATIVE = tiny()
UNKNOWN_TYPE = tiny(type="Q8_K", hidden_size=256, feed_forward_size=256, head_size=64)


def config_of(path: Path, options: dict[str, Any]) -> EngineConfig:
    sizes: dict[str, Any] = {"ctx_size": 32, "kv_tokens": 64, "threads": 1} | options
    return EngineConfig(model=str(path), model_path=str(path), **sizes)


@pytest.mark.parametrize(
    ("write", "options", "expected"),
    [
        (NATIVE, {}, "native"),
        (NATIVE, {"backend": "native"}, "native"),
        (NATIVE, {"backend": "llama"}, "llama"),
        (NATIVE, {"flash_attn": "on"}, "llama"),
        (tiny(context_length=0), {}, "llama"),
        (UNKNOWN_TYPE, {}, "llama"),
        (tiny(architecture="qwen35"), {}, "native"),
        (tiny(architecture="mamba2"), {}, "native"),
        (lambda folder: write_mamba(folder / "m.gguf"), {}, "llama"),
        (bert(PoolingType.MEAN), {}, "llama"),
        (bert(PoolingType.RANK), {}, "llama"),
        (lambda folder: write_onnx_folder(folder / "onnx"), {}, "onnx"),
        (lambda folder: folder, {"backend": "scripted"}, "scripted"),
    ],
    ids=[
        "native",
        "told native",
        "told llama",
        "option of libllama",
        "unknown number",
        "unknown type",
        "recurrent layers",
        "recurrent layers alone",
        "unknown architecture",
        "encoder",
        "classifier",
        "onnx",
        "script",
    ],
)
def test_they_agree_who_computes(
    tmp_path: Path, write: Callable[[Path], Path], options: dict[str, Any], expected: str
) -> None:
    config = config_of(write(tmp_path), options)
    needs = measure(config)
    loaded = load_model(config, None, no_mark)
    loaded.backend.close()
    assert loaded.backend_name == expected
    assert (needs.backend if needs is not None else "scripted") == expected


@pytest.mark.parametrize("backend", ["auto", "native", "llama"])
def test_they_agree_where_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr("stoker.backends.llama.gpu_name", lambda: "cuda")
    monkeypatch.setattr("stoker.backends.llama.gpu_name_by_child", lambda: "cuda")
    config = config_of(NATIVE(tmp_path), {"backend": backend})
    needs, loaded = measure(config), load_model(config, None, no_mark)
    loaded.backend.close()
    assert needs is not None
    assert needs.backend == loaded.backend_name == ("native" if backend == "native" else "llama")


@pytest.mark.parametrize(
    ("write", "options", "error"),
    [
        (UNKNOWN_TYPE, {"backend": "native"}, ModelUnsupported),
        (other_pre_tokenizer, {"backend": "native"}, ModelUnsupported),
        (bert(PoolingType.RANK), {"backend": "native"}, ModelUnsupported),
        (NATIVE, {"backend": "onnx"}, ModelUnsupported),
        (NATIVE, {"backend": "native", "gpu_layers": 1}, ModelUnsupported),
        (tiny(keys={"rope.scaling.type": "su"}), {}, ModelUnsupported),
        (lambda folder: write_onnx_folder(folder / "onnx"), {"backend": "llama"}, ModelUnsupported),
        (lambda folder: write_onnx_folder(folder / "onnx"), {"gpu_layers": 1}, ConfigError),
        (lambda folder: write_onnx_folder(folder / "onnx"), {"lora": ["a.gguf"]}, ConfigError),
        (lambda folder: folder / "gone.gguf", {}, ModelError),
    ],
)
def test_they_refuse_with_the_same_words(
    tmp_path: Path, write: Callable[[Path], Path], options: dict[str, Any], error: type[Exception]
) -> None:
    config = config_of(write(tmp_path), options)
    with pytest.raises(error) as measured:
        measure(config)
    with pytest.raises(error) as opened:
        load_model(config, None, no_mark)
    assert str(measured.value) == str(opened.value)
    assert type(measured.value) is type(opened.value)


def test_a_tokenizer_that_is_not_known_is_known_without_making_it(tmp_path: Path) -> None:
    needs = measure(config_of(other_pre_tokenizer(tmp_path), {}))
    assert needs is not None
    assert needs.backend == "llama"


def test_a_file_without_a_vocabulary_is_damaged_for_both(tmp_path: Path) -> None:
    path = NATIVE(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokers"))
    for use in (measure, lambda config: load_model(config, None, no_mark)):
        with pytest.raises(ModelFileInvalid, match=r"`tokenizer\.ggml\.tokens` is missing"):
            use(config_of(path, {}))


def test_a_process_of_its_own_is_asked_for_a_gpu_only_where_libllama_knows_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This machine's libllama is one for CPUs: the child finds no GPU, and a child that cannot run is an error."""
    monkeypatch.setattr(gpu, "built_for", lambda: "cuda")
    assert gpu.gpu_name_by_child() == gpu.gpu_name()
    gpu.gpu_name_by_child.cache_clear()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(ModelUnsupported, match="cannot be asked whether it has a GPU"):
        gpu.gpu_name_by_child()
    monkeypatch.setattr(gpu, "built_for", lambda: None)
    assert gpu.gpu_name_by_child() is None
