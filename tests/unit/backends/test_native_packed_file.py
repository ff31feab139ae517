"""Packed files in a shared directory: made once, mapped by all, packed again when they are not what they should be."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from stoker.backends.native.packed_file import HEAD_BYTES, PackedStore, Sink

NAME = "f" * 40
CONTENT = bytes(range(256)) * 40
PLENTY = 1 << 30


class Filler:
    """Writes `CONTENT` and counts how often."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.num_calls = 0

    def __call__(self, sink: Sink) -> None:
        self.num_calls += 1
        half = len(self.content) // 2
        sink.write(half, memoryview(self.content)[half:])
        sink.write(0, memoryview(self.content)[:half])


def test_a_file_is_made_once_and_then_mapped(tmp_path: Path) -> None:
    fill = Filler()
    for _ in range(3):
        memory = PackedStore(tmp_path / "new" / "packed", PLENTY).open(NAME, len(CONTENT), fill)
        assert memory is not None
        assert memory[:] == CONTENT
    assert fill.num_calls == 1
    assert [path.name for path in (tmp_path / "new" / "packed").glob("*.stoker")] == [f"{NAME}.stoker"]


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(HEAD_BYTES + 100)


def change_head(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(60)
        file.write(b"?")


def replace_by_text(path: Path) -> None:
    path.write_text("my notes")


def rename_another(path: Path) -> None:
    other = PackedStore(path.parent, PLENTY)
    assert other.open("e" * 40, len(CONTENT), Filler(bytes(len(CONTENT)))) is not None
    (path.parent / f"{'e' * 40}.stoker").replace(path)


@pytest.mark.parametrize("harm", [cut, change_head, replace_by_text, rename_another])
def test_a_file_that_is_not_what_it_should_be_is_made_again(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = PackedStore(tmp_path, PLENTY)
    assert store.open(NAME, len(CONTENT), Filler()) is not None
    harm(tmp_path / f"{NAME}.stoker")
    fill = Filler()
    memory = store.open(NAME, len(CONTENT), fill)
    assert memory is not None
    assert memory[:] == CONTENT
    assert fill.num_calls == 1
    assert "packed again" in caplog.text


def test_whoever_has_mapped_a_file_keeps_it_when_it_is_replaced(tmp_path: Path) -> None:
    store = PackedStore(tmp_path, PLENTY)
    memory = store.open(NAME, len(CONTENT), Filler())
    (tmp_path / f"{NAME}.stoker").unlink()
    assert store.open(NAME, len(CONTENT), Filler()) is not None
    assert memory is not None
    assert memory[:] == CONTENT


def test_a_directory_that_cannot_be_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    fill = Filler()
    assert PackedStore(tmp_path / "file" / "packed", PLENTY).open(NAME, len(CONTENT), fill) is None
    assert fill.num_calls == 0
    (said,) = (record.message for record in caplog.records if "packs them again" in record.message)
    assert f"in {tmp_path}/file/packed (STOKER_PACKED_DIR)" in said
    assert said.endswith(": Not a directory")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_in_the_middle_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("stoker.backends.native.packed_file.os.pwrite", fail)
    assert PackedStore(tmp_path, PLENTY).open(NAME, len(CONTENT), Filler()) is None
    assert list(tmp_path.glob("*.stoker")) == list(tmp_path.glob("*.part")) == []
    assert os.strerror(code) in caplog.text


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        "stoker.backends.native.packed_file.os.pwrite", lambda file, piece, at: pwrite(file, piece[:1000], at)
    )
    memory = PackedStore(tmp_path, PLENTY).open(NAME, len(CONTENT), Filler())
    assert memory is not None
    assert memory[:] == CONTENT


def test_an_error_while_packing_leaves_nothing(tmp_path: Path) -> None:
    def fill(sink: Sink) -> None:
        sink.write(0, memoryview(b"x"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        PackedStore(tmp_path, PLENTY).open(NAME, 1000, fill)
    assert list(tmp_path.glob("*.stoker")) == list(tmp_path.glob(".*.part")) == []


def test_what_dead_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    leftover, others, living = (tmp_path / f".{letter * 40}.123.abcd.part" for letter in "fea")
    mine = tmp_path / ".my.part"
    for path in (leftover, others, living, mine):
        path.touch()
    with FileLock(tmp_path / f".{'a' * 40}.lock"):
        assert PackedStore(tmp_path, PLENTY).open(NAME, len(CONTENT), Filler()) is not None
    assert sorted(tmp_path.glob(".*.part")) == [living, mine]


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    size = HEAD_BYTES + len(CONTENT)
    store = PackedStore(tmp_path, 2 * size + 100)
    names = [letter * 40 for letter in "abc"]
    for age, name in enumerate(names[:2]):
        assert store.open(name, len(CONTENT), Filler()) is not None
        os.utime(tmp_path / f"{name}.stoker", ns=(age, age))
    assert store.open(names[0], len(CONTENT), Filler()) is not None  # used again: now b is the oldest
    assert store.open(names[2], len(CONTENT), Filler()) is not None
    assert {path.stem for path in tmp_path.glob("*.stoker")} == {names[0], names[2]}


def test_threads_that_come_together_pack_once(tmp_path: Path) -> None:
    fill, found = Filler(), list[bool]()

    def open_it() -> None:
        memory = PackedStore(tmp_path, PLENTY).open(NAME, len(CONTENT), fill)
        found.append(memory is not None and memory[:] == CONTENT)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 6
    assert fill.num_calls == 1


def _pack_in_child(directory: Path, barrier: threading.Barrier, results: multiprocessing.SimpleQueue[int]) -> None:
    logging.disable()
    fill = Filler()
    barrier.wait(60)
    memory = PackedStore(directory, PLENTY).open(NAME, len(CONTENT), fill)
    assert memory is not None
    assert memory[:] == CONTENT
    results.put(fill.num_calls)


def test_processes_that_come_together_pack_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.SimpleQueue()
    children = [context.Process(target=_pack_in_child, args=(tmp_path, barrier, results)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert sorted(results.get() for _ in children) == [0, 0, 1]


def test_a_file_that_another_process_reads_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[int]()
    monkeypatch.setattr("stoker.backends.native.packed_file.read_in_huge_pages", read.append)
    monkeypatch.setattr("stoker.backends.native.packed_file._READ_WAIT_S", 0.0)
    store = PackedStore(tmp_path, PLENTY)
    assert store.open(NAME, len(CONTENT), Filler()) is not None
    with FileLock(tmp_path / f".{NAME}.lock"):
        store.read_in_huge_pages(NAME)
        assert read == []
    store.read_in_huge_pages(NAME)
    assert len(read) == 1
