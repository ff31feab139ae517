"""Control vectors as files: added up, scaled, cut to layers; what does not fit is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.errors import ConfigError
from stoker.models.control_vector import parse_layers, read_control_vectors
from tests.adapter_files import random_pairs, write_adapter, write_control_vector
from tests.tiny_models import TinyModel, write_tiny_model

ONES = np.ones(4, dtype=np.float32)


def read(*given: str):
    return read_control_vectors(given, num_layers=4, hidden_size=4)


def refusal(*given: str) -> str:
    with pytest.raises(ConfigError) as failure:
        read(*given)
    return failure.value.message


def test_files_add_up_by_their_scales(tmp_path: Path) -> None:
    first = write_control_vector(tmp_path / "a.gguf", {1: ONES, 3: 2 * ONES})
    second = write_control_vector(tmp_path / "b.gguf", {3: ONES})
    found = read(str(first), f"{second}:-0.5")
    assert found.values.tolist() == [[1] * 4, [0] * 4, [1.5] * 4]
    assert found.identity != read(str(first)).identity
    assert found.identity == read(f"{second}:-0.5", str(first)).identity


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_control_vector(tmp_path / "a.gguf", {1: ONES})
    assert read("~/a.gguf", "~/a.gguf:2").values.tolist() == [[3] * 4, [0] * 4, [0] * 4]


def test_what_does_not_fit(tmp_path: Path) -> None:
    short = write_control_vector(tmp_path / "short.gguf", {1: np.ones(3, dtype=np.float32)})
    deep = write_control_vector(tmp_path / "deep.gguf", {4: ONES})
    broken = write_control_vector(tmp_path / "nan.gguf", {1: ONES * np.nan})
    model = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    lora = write_adapter(tmp_path / "lora.gguf", random_pairs(model, 1))
    assert "3 numbers" in refusal(str(short))
    assert "does not have" in refusal(str(deep))
    assert "not finite" in refusal(str(broken))
    assert "not a control vector" in refusal(str(lora))
    assert "no file" in refusal(str(tmp_path / "gone.gguf"))
    (tmp_path / "cut.gguf").write_bytes(short.read_bytes()[:60])
    assert "cut.gguf" in refusal(f"{tmp_path / 'cut.gguf'}:0.5")


def test_layers() -> None:
    assert parse_layers("", 30) == (1, 29)
    assert parse_layers("10-20", 30) == (10, 20)
    for text in ("0-3", "5-4", "3-30", "3", "a-b", "-1-3"):
        with pytest.raises(ConfigError, match="FROM-TO within 1-29"):
            parse_layers(text, 30)
