"""Folders of Whisper models are told from others, and refused where something would be looked for elsewhere."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from stoker.engine.config import EngineConfig
from stoker.errors import ModelFileInvalid, ModelFileNotFound, ModelUnsupported
from stoker.loading.choosing import measure
from stoker.loading.transcribers import create_transcriber, measure_transcriber, transcribes
from stoker.models.store import resolve
from stoker.models.whisper_folder import check_whisper_folder, is_whisper_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    name = b"WhisperSpec\0"
    tmp_path.joinpath("model.bin").write_bytes(struct.pack("<IH", 6, len(name)) + name + bytes(1000))
    for settings in ("config.json", "tokenizer.json"):
        tmp_path.joinpath(settings).write_text("{}")
    return tmp_path


def test_a_folder_with_weights_of_whisper_is_a_model(folder: Path):
    assert is_whisper_folder(folder)
    assert resolve(str(folder)) == folder
    check_whisper_folder(folder)
    folder.joinpath("model.bin").write_bytes(b"\6\0\0\0\x10\0TransformerSpec\0" + bytes(1000))
    assert not is_whisper_folder(folder)
    assert not is_whisper_folder(folder / "model.bin")
    assert not is_whisper_folder(folder / "nothing")


def test_a_folder_without_its_tokenizer_is_refused_and_nothing_is_fetched(folder: Path):
    folder.joinpath("tokenizer.json").write_text("{")
    with pytest.raises(ModelFileInvalid, match=r"tokenizer\.json cannot be read"):
        check_whisper_folder(folder)
    folder.joinpath("tokenizer.json").unlink()
    with pytest.raises(ModelFileNotFound, match=r"no tokenizer\.json"):
        check_whisper_folder(folder)
    pytest.importorskip("faster_whisper")
    with pytest.raises(ModelFileNotFound):
        create_transcriber(EngineConfig(model="w", model_path=str(folder)))


def test_its_memory_is_planned_and_no_engine_takes_it(folder: Path):
    config = EngineConfig(model="w", model_path=str(folder))
    assert transcribes(config)
    needs = measure_transcriber(config)
    assert needs.least_bytes > folder.joinpath("model.bin").stat().st_size
    with pytest.raises(ModelUnsupported, match="stoker transcribe"):
        measure(config)
