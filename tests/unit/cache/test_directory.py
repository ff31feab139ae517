from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest

from stoker.cache import file_io
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
    directory.note_use(ONE, A, time.time())
    directory.note_use(OTHER, A, time.time())
    directory.read(ONE, C)
    assert directory.latest(ONE, 2 * size) == [A, B], "only what was really used counts as used"


def test_those_used_least_recently_leave_whichever_model_they_are_of(directory: BlockDirectory) -> None:
    for age, (fingerprint, key) in enumerate([(ONE, A), (OTHER, B), (ONE, C)]):
        directory.write(fingerprint, key, b"x" * 1000)
        os.utime(block_path(directory, key, fingerprint), (age, age))
    directory.note_use(ONE, A, time.time())
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


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def test_a_link_is_removed_and_what_it_leads_to_is_neither_read_nor_touched(directory: BlockDirectory) -> None:
    directory.write(ONE, A, b"elsewhere")
    path, elsewhere = block_path(directory, A), directory.folder / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"\w"):
        directory.read(ONE, A)
    assert [bool(fault) for _, fault in directory.sweep()] == [True]
    assert not path.is_symlink()
    assert elsewhere.exists()


def test_no_memory_is_taken_for_what_has_no_header(directory: BlockDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write(ONE, B, b"")
    _hole(block_path(directory, A))
    taken: list[int] = []
    monkeypatch.setattr(directory.arena, "take", taken.append)
    with pytest.raises(BadBlockFile):
        directory.read(ONE, A)
    assert not taken


def _hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("make", [_pipe, _link, _hole, Path.mkdir])
def test_what_is_no_plain_file_of_its_size_is_not_read(directory: BlockDirectory, make: Callable[[Path], None]) -> None:
    """A pipe would never end, a device neither, and a file with a hole would take all memory."""
    directory.write(ONE, B, b"fine")
    path = block_path(directory, A)
    make(path)
    with pytest.raises((BadBlockFile, OSError)):
        directory.read(ONE, A)
    assert [(entry.path, bool(fault)) for entry, fault in directory.check(ONE.hex()) if fault] in ([(path, True)], [])
    assert dict(directory.sweep())[block_path(directory, B)] == ""
    assert path.is_dir() or not (path.is_symlink() or path.exists())
    assert Path("/dev/zero").exists(), "where a link leads to is left alone"


def test_times_from_the_future_or_the_past_cost_nothing_but_their_place_in_line(directory: BlockDirectory) -> None:
    for key, used_at in ((A, 2**33), (B, 0)):
        directory.write(ONE, key, b"x" * 100)
        os.utime(block_path(directory, key), (used_at, used_at))
    assert directory.latest(ONE, 10**6) == [A, B]
    directory.shrink(250)
    assert list(directory.keys(ONE)) == [A]
    assert [fault for _, fault in directory.sweep()] == [""]


def test_what_is_known_is_not_looked_up_again(directory: BlockDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (A, B):
        directory.write(ONE, key, b"x")
    known = directory.keys(ONE)
    directory.write(ONE, C, b"x")
    directory.remove(ONE, A)
    looked_at: list[str] = []
    lstat = os.lstat

    def noted(path: str) -> os.stat_result:
        looked_at.append(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", noted)
    assert directory.keys(ONE, known) == {B: known[B], C: known[B]}
    assert looked_at == [str(block_path(directory, C))]


def test_a_block_is_read_whole_also_if_the_system_gives_little_at_once(
    directory: BlockDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frugal(FileIO):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            return super().readinto(buffer[:7]) or 0

    directory.write(ONE, A, bytes(range(100)))
    monkeypatch.setattr(file_io, "FileIO", Frugal)
    assert bytes(directory.read(ONE, A)) == bytes(range(100))


def test_a_folder_that_has_not_changed_is_in_the_same_state(directory: BlockDirectory) -> None:
    assert directory.state(ONE) is None
    directory.write(ONE, A, b"x")
    assert directory.state(ONE) is None, "more may come at what is the same time to a coarse clock"
    folder = block_path(directory, A).parent
    os.utime(folder, (0, 0))
    before = directory.state(ONE)
    assert before == directory.state(ONE) == 0
    directory.write(ONE, B, b"x")
    os.utime(folder, (0, 1))
    assert directory.state(ONE) not in (None, before)


def test_only_one_process_at_a_time_removes_blocks(directory: BlockDirectory, tmp_path: Path) -> None:
    for number in range(8):
        directory.write(ONE, bytes([number]) * 16, b"x" * 1000)
    claim = directory.folder / "cleaning"
    claim.touch()
    assert directory.shrink(0) == [], "another process is at it"
    assert len(directory.keys(ONE)) == 8
    an_hour_ago = claim.stat().st_mtime - 3600
    os.utime(claim, (an_hour_ago, an_hour_ago))
    assert len(directory.shrink(0)) == 8, "the process that was at it has been killed"
    assert [path.name for path in directory.folder.iterdir()] == [ONE.hex()]


@pytest.mark.parametrize("skew_s", [-60, 60])
def test_machines_whose_clocks_differ_miss_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: int
) -> None:
    now_ns, real = [0], time.time
    directory = BlockDirectory(tmp_path, clock=lambda: now_ns[0])
    monkeypatch.setattr(time, "time", lambda: real() + skew_s)
    monkeypatch.setattr(time, "time_ns", lambda: round((real() + skew_s) * 1e9))
    directory.write(ONE, A, b"x" * 1000)
    assert directory.state(ONE) is None, "another block may come in the same tick"
    now_ns[0] += 3 * 10**9
    assert directory.state(ONE) is not None
    (directory.folder / "cleaning").touch()
    assert directory.shrink(0) == [], "the process that is at it may be alive"
    (directory.folder / "cleaning").unlink()
    BlockDirectory(tmp_path).write(ONE, B, b"x" * 1000)
    assert directory.state(ONE) is None
    assert directory.keys(ONE).keys() == {A, B}
    assert {entry.key for entry in directory.shrink(0)} == {A, B}


def test_folder_in_which_files_cannot_be_renamed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BlockDirectory(tmp_path / "new").prepare()
    assert not list((tmp_path / "new").iterdir())

    def refuse(_from: str, _to: str) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=r"cannot be renamed there \(Function not implemented\).*s3://BUCKET"):
        BlockDirectory(tmp_path).prepare()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
