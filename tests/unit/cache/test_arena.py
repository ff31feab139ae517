from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache import arena as arena_module
from stoker.cache.arena import PIECE_BYTES, Arena


@given(st.lists(st.integers(0, PIECE_BYTES // 3), max_size=12))
def test_parts_are_as_large_as_wanted_and_never_overlap(sizes: list[int]) -> None:
    arena = Arena()
    parts = [arena.take(size) for size in sizes]
    assert [len(part) for part in parts] == sizes
    for index, part in enumerate(parts):
        if part:
            part[0] = part[-1] = index + 1
    assert [part[0] for part in parts if part] == [index + 1 for index, size in enumerate(sizes) if size]


def test_one_larger_than_a_piece_is_fine() -> None:
    assert len(Arena().take(PIECE_BYTES + 1)) == PIECE_BYTES + 1


def test_a_piece_goes_with_its_last_part() -> None:
    arena = Arena()
    first, second = arena.take(100), arena.take(100)
    piece = weakref.ref(first.obj)  # type: ignore[arg-type]
    kept = arena.take(PIECE_BYTES)  # of another piece
    del first
    gc.collect()
    assert piece() is not None
    del second
    gc.collect()
    assert piece() is None
    assert len(kept) == PIECE_BYTES


def test_systems_without_huge_pages_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(arena_module.mmap, "MADV_HUGEPAGE", raising=False)
    assert bytes(Arena().take(3)) == bytes(3)
