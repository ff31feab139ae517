"""Names that a shell completes, and the folder of the prefix cache that stands for the usual one."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.options import model_names
from stoker.models.aliases import add_alias
from stoker.models.presets import Preset, write_preset
from tests.unit.cli.conftest import Stoker


def test_names_on_this_disk_and_well_known_ones_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    (tmp_path / "base.gguf").touch()
    write_preset("qwen-pirate", Preset(model=str(tmp_path / "base.gguf")))
    add_alias("mine", "smollm2")
    assert model_names("qwen-") == ["qwen-pirate"]
    assert model_names("qwen3:4") == ["qwen3:4b"]
    assert model_names("smol")[0] == "smollm2"
    assert model_names("nothing") == []


def test_a_shell_is_told_them(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_STOKER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "stoker run gpt-oss:1")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert stoker("run").out.split() == ["gpt-oss:120b"]


def test_auto_is_the_usual_folder_of_the_prefix_cache(stoker: Stoker, tmp_path: Path) -> None:
    usual = str(tmp_path / "cache" / "kv")
    assert usual in stoker("config", "show", "--cache-dir", "auto").out
    assert usual in stoker("cache", "list").err


def test_a_folder_that_cannot_be_used_is_told_before_the_answer(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command in ("run", "serve"):
        done = stoker(command, "fine", *(["Hi"] if command == "run" else []), "--cache-dir", str(tmp_path / "file"))
        assert (done.code, done.out) == (2, "")
        assert "file cannot be used: File exists" in done.err
