"""Weights lie in large pages where the kernel has them, and anywhere else where it has not."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from stoker.backends.native.huge_pages import forget_small_pages, prefer_huge_pages

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_SIZE = 16 << 20


def test_memory_that_is_asked_for_comes_in_huge_pages() -> None:
    if not _SETTING.exists() or "[never]" in _SETTING.read_text():
        pytest.skip("this kernel gives no huge pages")
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


def _resident(kind: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))
