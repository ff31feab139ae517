"""The projector of a model is found beside it, or named."""

from pathlib import Path

import pytest

from stoker.errors import ConfigError, ModelFileNotFound
from stoker.models.projector import find_projector, projector_bytes, read_projector
from tests.projector_files import write_projector


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "SmolVLM-Q8_0.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_the_projector_beside_the_model_is_taken(model: Path):
    assert find_projector(model, "auto") is None
    f16 = write_projector(model.with_name("mmproj-SmolVLM-F16.gguf"), 32)
    assert find_projector(model, "auto") == f16
    bf16 = write_projector(model.with_name("mmproj-SmolVLM-BF16.gguf"), 32)
    assert find_projector(model, "auto") == bf16
    assert find_projector(model, str(f16)) == f16
    assert find_projector(model, "off") is None
    assert projector_bytes(f16) >= f16.stat().st_size


def test_the_projector_of_another_model_is_not_taken(model: Path):
    model.with_name("Other-7B.gguf").write_bytes(b"GGUF")
    write_projector(model.with_name("mmproj-Other-7B-F16.gguf"), 32)
    assert find_projector(model, "auto") is None
    own = write_projector(model.with_name("SmolVLM-mmproj.gguf"), 32)
    assert find_projector(model, "auto") == own


def test_the_parts_of_a_split_model_are_one_model(tmp_path: Path):
    first, second = (tmp_path / f"SmolVLM-{number:05d}-of-00002.gguf" for number in (1, 2))
    for part in (first, second):
        part.write_bytes(b"GGUF")
    projector = write_projector(tmp_path / "mmproj-F16.gguf", 32)
    assert find_projector(first, "auto") == projector


def test_what_is_no_projector_is_refused(model: Path):
    with pytest.raises(ModelFileNotFound, match="there is no file"):
        find_projector(model, str(model.with_name("mmproj.gguf")))
    with pytest.raises(ConfigError, match="cannot be read"):
        find_projector(model, str(model))


def test_the_longest_image_whose_rows_see_each_other_is_known(tmp_path: Path):
    for kind, side, merge, expected in (("gemma3", 448, 1, 1024), ("gemma3", 112, 4, 4), ("mlp", 28, 2, 0)):
        path = write_projector(tmp_path / f"{kind}-{side}.gguf", 32, kind=kind, side=side, merge=merge)
        assert read_projector(path).longest_whole == expected
