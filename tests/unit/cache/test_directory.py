from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from stoker.cache.block_file import BadBlockFile
from stoker.cache.directory import BlockDirectory, KeptModel

ONE, OTHER = b"1" * 32, b"2" * 32
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


@pytest.fixture
def directory(tmp_path: Path) -> BlockDirectory:
    return BlockDirectory(tmp_path)


def block_path(directory: BlockDirectory, key: bytes, fingerprint: bytes = ONE) -> Path:
    return directory.folder / fingerprint.hex() / f"{key.hex()}.kv"


def faults(directory: BlockDirectory) -> list[str]:
    return [fault for _, fault in directory.sweep() if fault]


def test_blocks_of_two_models_do_not_meet(directory: BlockDirectory) -> None:
    directory.write(ONE, A, b"one")
    directory.write(OTHER, A, b"other")
    assert bytes(directory.read(ONE, A)) == b"one"
    assert bytes(directory.read(OTHER, A)) == b"other"
    assert directory.keys(ONE).keys() == {A}
    with pytest.raises(FileNotFoundError):
        directory.read(ONE, B)


def test_nothing_is_created_before_something_is_written(directory: BlockDirectory) -> None:
    assert (directory.models(), directory.keys(ONE), faults(directory)) == ([], {}, [])
    assert not directory.folder.exists()


def test_a_write_that_fails_leaves_what_was_there_and_no_trace(
    directory: BlockDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write(ONE, A, b"first")

    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        directory.write(ONE, A, b"second")
    assert bytes(directory.read(ONE, A)) == b"first"
    assert [path.name for path in block_path(directory, A).parent.iterdir()] == [f"{A.hex()}.kv"]


def test_the_latest_are_known_as_many_as_fit(directory: BlockDirectory) -> None:
    for key, age in ((A, 10), (B, 30), (C, 20)):
        directory.write(ONE, key, b"x" * 100)
        os.utime(block_path(directory, key), (age, age))
    size = directory.keys(ONE)[A]
    assert directory.latest(ONE, 3 * size) == [B, C, A]
    assert directory.latest(ONE, 3 * size - 1) == [B, C]
    assert directory.latest(ONE, 0) == []
    directory.note_use(ONE, A)
    directory.note_use(OTHER, A)
    directory.read(ONE, C)
    assert directory.latest(ONE, 2 * size) == [A, B], "only what was really used counts as used"


def test_those_used_least_recently_leave_whichever_model_they_are_of(directory: BlockDirectory) -> None:
    for age, (fingerprint, key) in enumerate([(ONE, A), (OTHER, B), (ONE, C)]):
        directory.write(fingerprint, key, b"x" * 1000)
        os.utime(block_path(directory, key, fingerprint), (age, age))
    directory.note_use(ONE, A)
    removed = directory.shrink(2500)
    assert [entry.path for entry in removed] == [block_path(directory, B, OTHER)]
    assert directory.shrink(2500) == []


def test_the_sweep_removes_what_cannot_be_read_and_nothing_else(directory: BlockDirectory) -> None:
    directory.write(ONE, A, b"good")
    directory.write(ONE, B, b"will be cut short")
    block_path(directory, B).write_bytes(block_path(directory, B).read_bytes()[:-3])
    block_path(directory, C).write_bytes(b"somebody else's")
    misnamed = block_path(directory, A, OTHER)
    misnamed.parent.mkdir()
    misnamed.write_bytes(block_path(directory, A).read_bytes())
    mine = block_path(directory, A).parent / "notes.txt"
    mine.write_text("keep me")
    assert len(faults(directory)) == 3
    assert directory.keys(ONE).keys() == {A}
    assert directory.keys(OTHER) == {}
    assert mine.exists()


def test_leftovers_of_killed_processes_go_but_not_what_is_being_written(directory: BlockDirectory) -> None:
    directory.write(ONE, A, b"x")
    folder = block_path(directory, A).parent
    old, new = folder / "old.tmp", folder / "new.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    assert faults(directory) == []
    assert not old.exists()
    assert new.exists()


def test_a_damaged_rest_is_found_when_it_is_read(directory: BlockDirectory) -> None:
    directory.write(ONE, A, b"x" * 100)
    path = block_path(directory, A)
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    assert faults(directory) == []
    with pytest.raises(BadBlockFile, match="damaged"):
        directory.read(ONE, A)


def test_what_a_fingerprint_stands_for_is_noted_for_people(directory: BlockDirectory) -> None:
    assert directory.described(ONE.hex()).name == "unknown"
    directory.describe(ONE, KeptModel("smollm2", "llama 1"))
    directory.describe(ONE, KeptModel("renamed", "llama 1"))
    assert directory.described(ONE.hex()) == KeptModel("smollm2", "llama 1")


def test_clearing_spares_other_models_and_other_peoples_files(directory: BlockDirectory) -> None:
    directory.write(ONE, A, b"x" * 100)
    directory.write(OTHER, A, b"x")
    directory.describe(ONE, KeptModel("m", "f"))
    mine = block_path(directory, A).parent / "mine"
    mine.touch()
    assert directory.clear(ONE.hex()) > 100
    assert [path.name for path in mine.parent.iterdir()] == ["mine"]
    assert directory.keys(OTHER).keys() == {A}
    directory.clear(OTHER.hex())
    assert directory.models() == [ONE.hex()]


def test_a_folder_that_cannot_be_written_to_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file where the folder should be")
    directory = BlockDirectory(tmp_path)
    with pytest.raises(OSError, match="kv"):
        directory.write(ONE, A, b"x")
    assert directory.models() == []


def test_blocks_are_private_to_the_user(directory: BlockDirectory) -> None:
    """They are conversations."""
    directory.write(ONE, A, b"x")
    assert stat.S_IMODE(block_path(directory, A).stat().st_mode) == 0o600
