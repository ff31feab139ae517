"""Where a model's files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig, sampling_defaults
from stoker.errors import ConfigError
from stoker.loading.locating import local_model
from stoker.models.presets import Preset, write_preset


def test_a_local_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert local_model(EngineConfig(model=str(file))).model_path == str(file)
    assert local_model(EngineConfig(model="smollm2", model_path="/x")).model_path == "/x"


def test_a_preset_becomes_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    file = tmp_path / "a.gguf"
    file.touch()
    preset = Preset(model=str(file), system="Say arr.", sampling={"temperature": 0.5}, lora=["x=x.gguf"], ctx_size=64)
    write_preset("pirate", preset)
    config = local_model(EngineConfig(model="pirate:latest", sampling=SamplingParams(top_k=3)))
    assert (config.model_path, config.name, config.ctx_size) == (str(file), "pirate:latest", 64)
    assert config.preset.system == "Say arr."
    assert config.lora == ["x=x.gguf"]
    assert local_model(EngineConfig(model="pirate", ctx_size=128)).ctx_size == 128
    recommended = SamplingParams(temperature=0.1, top_p=0.2)
    assert sampling_defaults(config, recommended) == SamplingParams(temperature=0.5, top_p=0.2, top_k=3)


def test_a_preset_that_says_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    write_preset("odd", Preset(model="smollm2", sampling={"warmth": 1}))
    with pytest.raises(ConfigError, match="the preset 'odd' cannot be used"):
        local_model(EngineConfig(model="odd"))
