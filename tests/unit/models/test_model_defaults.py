"""What a model recommends about sampling."""

import re
from pathlib import Path
from typing import Any

import pytest

from stoker.core.params import SamplingParams
from stoker.errors import ModelFileInvalid
from stoker.models.gguf import read_gguf
from stoker.models.model_defaults import model_defaults
from tests.unit.models.tiny_gguf import write_tiny_gguf


def defaults(directory: Path, config: str | None = None, **values: Any) -> SamplingParams:
    path = write_tiny_gguf(directory / "m.gguf", **values)
    if config is not None:
        (directory / "generation_config.json").write_text(config)
    return model_defaults(read_gguf(path))


def test_a_model_without_opinions(tmp_path: Path) -> None:
    assert defaults(tmp_path) == SamplingParams()


def test_from_the_file(tmp_path: Path) -> None:
    found = defaults(
        tmp_path,
        general__sampling__temp=0.5,
        general__sampling__top_k=0,
        general__sampling__penalty_last_n=64,
        general__sampling__penalty_repeat=1.25,
    )
    assert found == SamplingParams(temperature=0.5, top_k=0, penalty_last_n=64, repetition_penalty=1.25)


def test_the_file_beside_it_wins(tmp_path: Path) -> None:
    config = '{"temperature": 0, "top_p": 0.8, "do_sample": true, "eos_token_id": [1, 2], "max_new_tokens": 5}'
    found = defaults(tmp_path, config, general__sampling__temp=0.5, general__sampling__top_k=7)
    assert found == SamplingParams(temperature=0, top_p=0.8, top_k=7)


@pytest.mark.parametrize("config", ["", "[]", "not json", "\x00"])
def test_a_config_that_cannot_be_read_is_named_and_ignored(
    tmp_path: Path, config: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert defaults(tmp_path, config, general__sampling__top_k=7) == SamplingParams(top_k=7)
    assert "generation_config.json is ignored" in caplog.text


@pytest.mark.parametrize("bad", ['"hot"', "-1", "[1]", "true"])
def test_a_bad_number_is_named_and_the_others_hold(tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture) -> None:
    assert defaults(tmp_path, f'{{"temperature": {bad}, "top_k": 50.0}}') == SamplingParams(top_k=50)
    assert re.search(r"generation_config\.json recommends temperature = ", caplog.text)


def test_a_recommendation_out_of_range_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert defaults(tmp_path, general__sampling__temp=-1.0, general__sampling__top_k=3) == SamplingParams(top_k=3)
    assert re.search(r"m\.gguf recommends temperature = -1\.0, which is ignored", caplog.text)
    with pytest.raises(ModelFileInvalid, match=r"general\.sampling\.temp"):
        defaults(tmp_path, general__sampling__temp="hot")


def test_what_a_model_must_never_write_is_banned(tmp_path: Path) -> None:
    path = write_tiny_gguf(
        tmp_path / "m.gguf", tokenizer__ggml__tokens=["a", "b", "c"], tokenizer__ggml__suppress_tokens=[2, 1, 1, 3, -1]
    )
    assert model_defaults(read_gguf(path)).banned_token_ids == (1, 2)
