"""Weights lie in large pages where the kernel has them, and anywhere else where it has not."""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from stoker.backends.native import huge_pages
from stoker.backends.native.huge_pages import (
    forget_small_pages,
    lies_in_small_pages,
    prefer_huge_pages,
    read_in_huge_pages,
)
from stoker.backends.native.packed_file import PackedStore, Sink

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SIZE = 16 << 20


def test_memory_that_is_asked_for_comes_in_huge_pages() -> None:
    _skip_without_huge_pages()
    before = _resident("AnonHugePages:")
    with mmap.mmap(-1, _SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        prefer_huge_pages(memory)
        memory[:] = b"a" * _SIZE
        assert _resident("AnonHugePages:") > before


def test_a_file_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(b"abc" * 5000)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        forget_small_pages(file.fileno())
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
            prefer_huge_pages(memory)
            assert memory[:] == b"abc" * 5000


def test_a_kernel_that_refuses_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with mmap.mmap(-1, 4096) as memory:
        memory[:] = b"a" * 4096
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)
        prefer_huge_pages(memory)
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
        prefer_huge_pages(memory)
        assert memory[:] == b"a" * 4096, "the memory is what it was"
    with open(os.devnull, "rb") as closed:
        number = closed.fileno()
    forget_small_pages(number)


@pytest.fixture
def file(tmp_path: Path) -> Generator[int]:
    """24 MiB on a file system with huge pages, none of them in the page cache."""
    _skip_without_huge_pages()
    path = tmp_path / "packed"
    path.write_bytes(bytes(range(256)) * (24 << 12))
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
        forget_small_pages(number)
        if not _is_huge(number):
            pytest.skip("this file system has no huge pages")
        forget_small_pages(number)
        yield number
    finally:
        os.close(number)


@pytest.mark.parametrize("small", [(0, 24), (0, 6), (10, 20)])
def test_a_file_that_is_partly_in_small_pages_is_read_again(file: int, small: tuple[int, int]) -> None:
    _read_in_small_pages(file, *small)
    assert not _is_huge(file)
    read_in_huge_pages(file)
    assert _is_huge(file)


def test_a_file_in_huge_pages_stays_in_the_page_cache(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_huge_pages(file)
    dropped = _drops(monkeypatch)
    read_in_huge_pages(file)
    assert dropped == []


def test_what_is_behind_the_measured_part_is_dropped_only_if_it_is_in_small_pages(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "_READ_BYTES", 8 << 20)
    dropped = _drops(monkeypatch)
    for end in (8, 24):
        forget_small_pages(file)
        _read_in_small_pages(file, 0, end)
        read_in_huge_pages(file)
    assert dropped == [0, 0, 0, 0, 8 << 20]


def test_an_interrupted_check_raises_the_interrupt(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(huge_pages, "_huge_kib", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_in_huge_pages(file)


def test_small_pages_that_a_process_has_mapped_stay(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with _read_in_small_pages(file, 0, 24) as used:
        dropped = _drops(monkeypatch)
        read_in_huge_pages(file)
        assert len(dropped) == 1, "only the first piece is tried"
        assert not _is_huge(file)
        assert used[:256] == bytes(range(256))


@pytest.mark.usefixtures("file")  # skips the test where there are no huge pages
def test_the_check_of_a_packed_file_takes_no_small_pages(tmp_path: Path) -> None:
    def fill(sink: Sink) -> None:
        sink.write(0, memoryview(b"content"))

    memory = PackedStore(tmp_path, 1 << 30).open("f" * 40, 10 << 20, fill)
    assert memory is not None
    assert not lies_in_small_pages(memory)


def test_a_packed_file_that_is_gone_is_not_an_error(tmp_path: Path) -> None:
    PackedStore(tmp_path, 1 << 30).read_in_huge_pages("f" * 40)
    assert list(tmp_path.iterdir()) == []


def _skip_without_huge_pages() -> None:
    if not _SETTING.exists() or "[never]" in _SETTING.read_text():
        pytest.skip("this kernel gives no huge pages")


def _is_huge(file: int) -> bool:
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as memory:
        prefer_huge_pages(memory)
        return not lies_in_small_pages(memory)


def _read_in_small_pages(file: int, first_mib: int, end_mib: int) -> mmap.mmap:
    """The kernel reads no more ahead of a mapping that is used at random than the page that is needed."""
    memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    memory.madvise(mmap.MADV_RANDOM)
    for at in range(first_mib << 20, end_mib << 20, mmap.PAGESIZE):
        memory[at]
    return memory


def _drops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of what is dropped from now on."""
    dropped = list[int]()
    advise = os.posix_fadvise

    def record(file: int, start: int, num_bytes: int, advice: int) -> None:
        dropped.append(start)
        advise(file, start, num_bytes, advice)

    monkeypatch.setattr(os, "posix_fadvise", record)
    return dropped


def _resident(kind: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))
