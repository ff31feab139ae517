"""Which files of a folder are models, whatever else lies there and whoever changes it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.models.discovery import find_models


def lay(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"xyz")


def found(folder: Path) -> dict[str, str]:
    return {model.name: str(model.path.relative_to(folder)) for model in find_models(folder)}


def test_parts_are_one_model_and_half_of_one_is_none(tmp_path: Path) -> None:
    lay(
        tmp_path,
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
        "half-00001-of-00002.gguf",
        "rest-00002-of-00002.gguf",
    )
    (model,) = find_models(tmp_path)
    assert (model.name, model.path.name, model.size_bytes) == ("m", "m-00001-of-00002.gguf", 6)


def test_a_name_that_counts_impossibly_is_a_name_like_any_other(tmp_path: Path) -> None:
    lay(tmp_path, "m.gguf", "m-00000-of-00003.gguf", "n-00004-of-00003.gguf", "o-00001-of-00000.gguf")
    assert list(found(tmp_path)) == ["m", "m-00000-of-00003", "n-00004-of-00003", "o-00001-of-00000"]


def test_endings_are_the_same_in_any_case(tmp_path: Path) -> None:
    lay(tmp_path, "A.GGUF", "B-00001-of-00002.GGUF", "B-00002-of-00002.GGUF", "b.Gguf")
    assert found(tmp_path) == {"A": "A.GGUF", "B": "B-00001-of-00002.GGUF", "b": "b.Gguf"}


def test_projectors_and_what_is_hidden_are_no_models(tmp_path: Path) -> None:
    lay(tmp_path, "mmproj-a.gguf", "a-mmproj-f16.gguf", "a.MMPROJ.gguf", ".b.gguf", ".under/way/c.gguf", "d.gguf.part")
    assert found(tmp_path) == {}


def test_a_folder_that_is_a_link_is_looked_into(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    lay(tmp_path, "elsewhere/far/a.gguf", "models/b.gguf")
    (folder / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (folder / "nowhere").symlink_to(tmp_path / "gone", target_is_directory=True)
    assert found(folder) == {"a": "link/far/a.gguf", "b": "b.gguf"}


def test_links_that_go_round_in_circles_are_followed_once(tmp_path: Path) -> None:
    lay(tmp_path, "deep/a.gguf", "z.gguf")
    (tmp_path / "deep" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "here").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "twice").symlink_to(tmp_path / "deep", target_is_directory=True)
    assert found(tmp_path) == {"a": "deep/a.gguf", "z": "z.gguf"}


def test_what_disappears_while_it_is_looked_at_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes after each look at it, however often that is, and comes back with the next listing."""
    lay(tmp_path, "a.gguf", "goes.gguf")
    stat, going = Path.stat, tmp_path / "goes.gguf"

    def stat_once(path: Path, **options: Any) -> os.stat_result:
        try:
            return stat(path, **options)
        finally:
            if path == going:
                going.unlink(missing_ok=True)

    monkeypatch.setattr(Path, "stat", stat_once)
    names = set[str]()
    for _ in range(2):
        names.update(found(tmp_path))
    assert "a" in names
    assert not going.exists()
    assert list(found(tmp_path)) == ["a"]


def test_a_folder_that_is_not_there_has_no_models(tmp_path: Path) -> None:
    assert find_models(tmp_path / "nowhere") == []
