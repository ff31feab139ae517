"""`stoker transcribe` with a transcriber that plays a script: what it writes, where, and what it refuses."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from stoker.engine.config import EngineConfig
from stoker.errors import ModelNotLoaded
from stoker.llm.transcriber import Transcriber
from stoker.media import transcriber as media
from stoker.media.wav import as_wav
from tests.unit.cli.conftest import Stoker
from tests.unit.media.scripted_transcriber import RATE

pytest.importorskip("av")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    name = b"WhisperSpec\0"
    made = tmp_path / "whisper"
    made.mkdir()
    made.joinpath("model.bin").write_bytes(struct.pack("<IH", 6, len(name)) + name)
    made.joinpath("ended").touch()

    def scripted(config: EngineConfig) -> media.Transcriber:
        return media.Transcriber((sys.executable, "-m", "tests.unit.media.scripted_transcriber", config.model_path))

    monkeypatch.setattr("stoker.llm.transcriber.create_transcriber", scripted)
    return made


def recorded(path: Path, *loudness: float) -> Path:
    path.write_bytes(as_wav(np.repeat(np.array(loudness, "<f4"), RATE).tobytes(), RATE))
    return path


def test_text_goes_to_stdout_a_line_for_each_segment(stoker: Stoker, folder: Path, tmp_path: Path) -> None:
    files = [recorded(tmp_path / "a.wav", 0.1, 0.2), recorded(tmp_path / "b.wav", 0.3)]
    done = stoker("transcribe", str(folder), *map(str, files))
    assert (done.code, done.out) == (0, "t1\nt2\nt3\n")
    assert stoker("transcribe", str(folder), str(files[0]), "--translate").out == "t1\nt2\n"


def test_other_formats_are_whole_documents_and_folders_have_one_for_each_file(
    stoker: Stoker, folder: Path, tmp_path: Path
) -> None:
    file = recorded(tmp_path / "a.wav", 0.1)
    assert stoker("transcribe", str(folder), str(file), "-f", "srt").out == "1\n00:00:00,000 --> 00:00:01,000\nt1\n"
    options = ("-f", "json", "--words", "--language", "EN", "-o", str(tmp_path / "out"))
    done = stoker("transcribe", str(folder), str(file), *options)
    assert (done.code, done.out) == (0, "")
    assert "a.json" in done.err
    written = json.loads((tmp_path / "out" / "a.json").read_text())
    assert (written["language"], written["duration"], written["text"]) == ("en", 1.0, "t1")
    assert written["segments"][0]["words"][0]["word"] == " t1"


def test_what_cannot_be_done_is_said(stoker: Stoker, folder: Path, tmp_path: Path) -> None:
    file = str(recorded(tmp_path / "a.wav", 0.1))
    assert "--format json" in stoker("transcribe", str(folder), file, "--words").err
    assert "one document" in stoker("transcribe", str(folder), file, file, "-f", "json").err
    assert "cannot be read" in stoker("transcribe", str(folder), str(tmp_path / "none.wav")).err
    assert "WAV, MP3" in stoker("transcribe", str(folder), str(folder / "model.bin")).err
    done = stoker("transcribe", file, file)
    assert (done.code, "not a Whisper model" in done.err) == (3, True)


def test_a_transcriber_is_closed_once_and_says_so_later(folder: Path, tmp_path: Path) -> None:
    file = recorded(tmp_path / "a.wav", 0.1, 0.2)
    with Transcriber(folder) as transcriber:
        stream = transcriber.stream(file)
        next(stream)
        transcriber.close()
        with pytest.raises(ModelNotLoaded):
            next(stream)
    with pytest.raises(ModelNotLoaded):
        transcriber.transcribe(file)
