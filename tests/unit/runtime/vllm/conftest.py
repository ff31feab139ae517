"""A fake vLLM for each test, and one tiny folder of a model for all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stoker.runtime.external import incarnation
from tests.onnx_models import write_tokenizer
from tests.unit.runtime.vllm.fake import Fake

_PROGRAM = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-vllm")
    write_tokenizer(folder)
    config = {"model_type": "llama", "max_position_embeddings": 256}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "do_sample": True}))
    return folder


@pytest.fixture(scope="package")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vllm-program") / "vllm"
    path.write_text(f"#!{sys.executable} -IS\n{_PROGRAM.read_text()}")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake(tmp_path: Path, model: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv("FAKE_VLLM", str(tmp_path))
    monkeypatch.setattr(incarnation, "_FIRST_PAUSE_S", 0.02)
    raw = json.loads((model / "tokenizer.json").read_text())
    letters = {**raw["model"]["vocab"], **{token["content"]: token["id"] for token in raw["added_tokens"]}}
    fake = Fake(program, tmp_path, model, letters)
    fake.answers("Hello")
    return fake
