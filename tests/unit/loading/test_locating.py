"""Where a model's files are."""

from __future__ import annotations

from pathlib import Path

from stoker.engine.config import EngineConfig
from stoker.loading.locating import local_model


def test_a_local_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert local_model(EngineConfig(model=str(file))).model_path == str(file)
    assert local_model(EngineConfig(model="smollm2", model_path="/x")).model_path == "/x"
