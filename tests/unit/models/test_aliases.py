"""Names that are copies, and models that are taken away again."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest

from stoker.errors import InvalidInput, ModelError, ModelFileNotFound
from stoker.models.aliases import add_alias, read_aliases, remove_alias
from stoker.models.cache import lock_path, models_dir, receipt_path, write_receipt
from stoker.models.removal import remove_model
from stoker.models.store import list_models, resolve
from tests.unit.models.tiny_gguf import write_tiny_gguf


def install(name: str, *files: str) -> list[Path]:
    """A downloaded model."""
    directory = models_dir() / "hf" / "org" / "repo"
    directory.mkdir(parents=True, exist_ok=True)
    paths = [write_tiny_gguf(directory / file) for file in files]
    for path in paths:
        write_receipt(path, name, "test", path, "0" * 64)
    return paths


def test_alias_is_another_name(cache: Path, tmp_path: Path):
    file = write_tiny_gguf(tmp_path / "own.gguf")
    add_alias("mine", str(file))
    add_alias("again/mine:v2", "mine")
    assert read_aliases() == {"mine": str(file), "again/mine:v2": str(file)}
    assert resolve("mine") == resolve("again/mine:v2") == file


def test_alias_can_be_given_anew_and_forgotten(cache: Path):
    add_alias("mine", "smollm2")
    add_alias("mine", "gemma3")
    assert read_aliases() == {"mine": "gemma3"}
    assert remove_alias("mine")
    assert not remove_alias("mine")
    with pytest.raises(ModelFileNotFound):
        resolve("mine")


def test_file_goes_before_an_alias(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_tiny_gguf(tmp_path / "mine")
    add_alias("mine", "smollm2")
    assert resolve("mine") == Path("mine")


def test_circles_do_not_hang(cache: Path):
    add_alias("a", "b")
    add_alias("b", "c")
    add_alias("c", "a")
    with pytest.raises(ModelFileNotFound):
        resolve("c")


@pytest.mark.parametrize(
    "name", ["", "smollm2", "../up", "/etc/x", "hf:org/repo", "a b", "a:b:c", ".hidden", "x" * 201]
)
def test_name_that_cannot_be_an_alias(cache: Path, name: str):
    with pytest.raises(InvalidInput) as refusal:
        add_alias(name, "smollm2")
    assert refusal.value.fields["parameter"] == "destination"
    assert read_aliases() == {}


def test_alias_of_itself_is_refused(cache: Path):
    with pytest.raises(InvalidInput, match="itself"):
        add_alias("mine", "mine")


def test_damaged_list_of_aliases_is_no_list(cache: Path):
    models_dir().mkdir(parents=True)
    (models_dir() / "aliases.json").write_bytes(b"\xff{")
    assert read_aliases() == {}


def test_removing_takes_all_parts_and_their_receipts(cache: Path):
    name = "hf:org/repo:m-00001-of-00002.gguf"
    paths = install(name, "m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    other = install("hf:org/repo:other.gguf", "other.gguf")
    remove_model(name)
    assert [model.name for model in list_models()] == ["hf:org/repo:other.gguf"]
    assert not any(path.exists() or receipt_path(path).exists() for path in paths)
    assert other[0].is_file()


def test_removing_an_alias_leaves_the_model(cache: Path):
    install("hf:org/repo:m.gguf", "m.gguf")
    add_alias("mine", "hf:org/repo:m.gguf")
    remove_model("mine")
    assert read_aliases() == {}
    assert len(list_models()) == 1


def test_only_what_is_in_the_cache_can_be_removed(cache: Path, tmp_path: Path):
    own = write_tiny_gguf(tmp_path / "own.gguf")
    with pytest.raises(ModelFileNotFound):
        remove_model(str(own))
    assert own.is_file()


def test_model_that_is_being_downloaded_is_not_removed(cache: Path):
    (path,) = install("hf:org/repo:m.gguf", "m.gguf")
    with filelock.FileLock(lock_path(path)), pytest.raises(ModelError, match="being downloaded"):
        remove_model("hf:org/repo:m.gguf")
    assert path.is_file()
