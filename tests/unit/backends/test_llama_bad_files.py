"""Files that are no models: each is refused with an error that says why, and nothing crashes."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest

from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.errors import ModelError, ModelFileInvalid, ModelFileNotFound, ModelUnsupported

OPTIONS = LlamaOptions(context_size=64, kv_tokens=256, num_slots=1)


def write_model(path: Path, architecture: str) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as failure:
        LlamaBackend(path, OPTIONS)
    assert str(path) in failure.value.message
    assert failure.value.fields["path"] == str(path)
    return failure.value


def test_missing_file(tmp_path: Path) -> None:
    assert type(refusal(tmp_path / "none.gguf")) is ModelFileNotFound


def test_directory(tmp_path: Path) -> None:
    assert type(refusal(tmp_path)) is ModelFileInvalid


@pytest.mark.parametrize("content", [b"", b"GG", b"Once upon a time there was a text file.\n"])
def test_no_gguf_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "story.gguf"
    path.write_bytes(content)
    error = refusal(path)
    assert type(error) is ModelFileInvalid
    assert "not a GGUF" in error.message


@pytest.mark.parametrize(
    "header",
    [
        b"GGUF",
        b"GGUF" + struct.pack("<I", 3),
        b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        b"GGUF" + struct.pack("<IQQ", 77, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62),
    ],
)
def test_broken_header(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(header)
    error = refusal(path)
    assert type(error) is ModelFileInvalid
    assert "no reason given" not in error.message


def test_unknown_architecture_is_unsupported(tmp_path: Path) -> None:
    error = refusal(write_model(tmp_path / "new.gguf", "frobnicator"))
    assert type(error) is ModelUnsupported
    assert "frobnicator" in error.message


def test_a_known_architecture_without_its_metadata(tmp_path: Path) -> None:
    assert type(refusal(write_model(tmp_path / "empty.gguf", "llama"))) is ModelFileInvalid
