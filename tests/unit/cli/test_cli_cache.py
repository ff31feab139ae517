from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cache.directory import BlockDirectory, KeptModel
from tests.unit.cli.conftest import Stoker

ONE, OTHER = b"1" * 32, b"2" * 32
A, B = b"a" * 16, b"b" * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    directory = BlockDirectory(tmp_path / "kept")
    for fingerprint, name in ((ONE, "smollm2"), (OTHER, "gemma3")):
        directory.describe(fingerprint, KeptModel(name, "llama 1"))
        directory.write(fingerprint, A, b"x" * 100_000)
    directory.write(ONE, B, b"y" * 200_000)
    return tmp_path / "kept"


def test_list_says_what_is_kept_of_which_model(stoker: Stoker, folder: Path) -> None:
    done = stoker("cache", "list", "--cache-dir", str(folder))
    lines = [line.split("  ") for line in done.out.splitlines()]
    assert (done.code, len(lines)) == (0, 3)
    assert "smollm2" in done.out
    assert "0.3 MB" in done.out
    assert ONE.hex()[:12] in done.out


def test_list_as_json_has_numbers(stoker: Stoker, folder: Path) -> None:
    listed = json.loads(stoker("cache", "list", "--json", "--cache-dir", str(folder)).out)
    assert {row["model"]: row["num_blocks"] for row in listed} == {"smollm2": 2, "gemma3": 1}
    assert all(row["size_bytes"] > 100_000 for row in listed)


def test_the_folder_is_a_setting_like_any_other(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOKER_KV_CACHE_DIR", str(folder))
    assert "gemma3" in stoker("cache", "list").out
    monkeypatch.delenv("STOKER_KV_CACHE_DIR")
    done = stoker("cache", "list")
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert str(tmp_path / "cache" / "kv") in done.err


def test_a_folder_that_is_not_there_is_empty(stoker: Stoker, tmp_path: Path) -> None:
    done = stoker("cache", "list", "--cache-dir", str(tmp_path / "nowhere"))
    assert (done.code, len(done.out.splitlines())) == (0, 1)
    assert f"there is no folder {tmp_path / 'nowhere'}" in done.err


@pytest.mark.parametrize("command", ["list", "check", "clear"])
@pytest.mark.parametrize("name", ["a.file", "x" * 300])
def test_what_can_be_no_folder_is_refused(stoker: Stoker, tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / "a.file").touch()
    done = stoker("cache", command, "--cache-dir", str(tmp_path / name))
    assert (done.code, done.out) == (2, "")
    assert "cannot be read" in done.err


def test_check_removes_what_is_damaged_and_names_it(stoker: Stoker, folder: Path) -> None:
    path = folder / "kv" / ONE.hex() / f"{A.hex()}.kv"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = stoker("cache", "check", "--cache-dir", str(folder))
    assert done.code == 0
    assert done.out.startswith("3 blocks, 0.4 MB")
    assert str(path) in done.err
    assert stoker("cache", "check", "--cache-dir", str(folder)).out.startswith("2 blocks")


@pytest.mark.parametrize("name", ["smollm2", ONE.hex()[:12]])
def test_clear_forgets_one_model(stoker: Stoker, folder: Path, name: str) -> None:
    done = stoker("cache", "clear", name, "--cache-dir", str(folder))
    assert (done.code, done.out) == (0, "0.3 MB freed\n")
    assert BlockDirectory(folder).models() == [OTHER.hex()]


def test_clear_without_a_name_forgets_everything(stoker: Stoker, folder: Path) -> None:
    assert stoker("cache", "clear", "--cache-dir", str(folder)).out == "0.4 MB freed\n"
    assert BlockDirectory(folder).models() == []


def test_clear_of_something_unknown_is_an_error(stoker: Stoker, folder: Path) -> None:
    done = stoker("cache", "clear", "gpt-9", "--cache-dir", str(folder))
    assert done.code == 2
    assert "gpt-9" in done.err
    assert len(BlockDirectory(folder).models()) == 2
