from __future__ import annotations

import gc
import mmap
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache import arena as arena_module
from stoker.cache.arena import PIECE_BYTES, Arena

PAGE = mmap.PAGESIZE
SIZES = st.sampled_from([0, 1, 63, 64, 65, 3 * 2**20, 5 * 2**20, PIECE_BYTES + 1])


@given(st.lists(st.one_of(SIZES, st.none()), max_size=40), st.randoms(use_true_random=False))
def test_nobody_else_writes_into_a_part_while_it_is_used(steps: list[int | None], rng: object) -> None:
    """Parts are taken, and given back (None) in any order; each keeps what its owner wrote."""
    arena, held, stamp = Arena(), list[tuple[memoryview, int]](), 0
    for step in steps:
        if step is not None:
            part, stamp = arena.take(step), stamp + 1
            assert len(part) == step
            if part:
                part[0] = part[-1] = stamp
                held.append((part, stamp))
            del part
        elif held:
            held.pop(rng.randrange(len(held)))  # type: ignore[attr-defined]
        assert all(part[0] == part[-1] == own for part, own in held)


def test_what_is_given_back_is_used_again() -> None:
    arena = Arena()
    parts = [arena.take(2**20) for _ in range(8)]
    held = arena.num_bytes
    where = {address(part) for part in parts}
    for _ in range(20):
        del parts[3]
        parts.append(arena.take(2**20))
        assert address(parts[-1]) in where
    assert arena.num_bytes == held == PIECE_BYTES


@pytest.mark.parametrize("derive", [lambda part: part[5:], lambda part: np.frombuffer(part, np.uint8)[5:]])
def test_a_view_of_a_part_holds_it(derive: object) -> None:
    arena = Arena()
    view = derive(arena.take(PIECE_BYTES))  # type: ignore[operator]
    view[0] = 7
    other = arena.take(PIECE_BYTES)
    other[5] = 8
    assert view[0] == 7


def test_pieces_that_nobody_uses_go_back_but_for_a_few() -> None:
    arena = Arena()
    parts = [arena.take(PIECE_BYTES // 2) for _ in range(24)]
    assert arena.num_bytes == 12 * PIECE_BYTES
    del parts[1:]
    arena.trim()
    assert arena.num_bytes == 9 * PIECE_BYTES, "the one in use, and eight to spare"
    assert len(parts[0]) == PIECE_BYTES // 2


@pytest.mark.parametrize(("pages", "most"), [(1, 32), (PIECE_BYTES // PAGE, 8)])
def test_sizes_that_are_asked_for_only_once_leave_little_behind(pages: int, most: int) -> None:
    """As states of conversations are: each is as large as the conversation is long."""
    arena = Arena()
    for index in range(60):
        size = (pages + index) * PAGE
        part = arena.take(size)
        while arena.prepare(size, 10**9):
            pass
        del part
    arena.trim()
    assert arena.num_bytes <= most * PIECE_BYTES


@pytest.mark.parametrize("size", [PAGE, 2**19, 3 * 2**20, PIECE_BYTES // 2 + PAGE, 40 * 2**20, 70 * 2**20])
def test_making_ready_comes_to_an_end_whatever_else_is_kept(size: int) -> None:
    arena = Arena()
    others = [arena.take(pages * PAGE) for pages in range(1000, 1060)]
    parts = [arena.take(size) for _ in range(3)]
    del others
    assert sum(arena.prepare(size, 10**9) for _ in range(200)) < 200
    assert len(parts) == 3


@pytest.mark.parametrize(("max_bytes", "ready"), [(10**9, 3 * PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES), (0, 0)])
def test_memory_is_made_ready_for_as_much_again_as_is_used(max_bytes: int, ready: int) -> None:
    arena = Arena()
    parts = [arena.take(PIECE_BYTES) for _ in range(3)]
    while arena.prepare(PIECE_BYTES, max_bytes):
        assert arena.num_bytes <= 6 * PIECE_BYTES
    assert arena.num_bytes == 3 * PIECE_BYTES + ready
    parts += [arena.take(PIECE_BYTES) for _ in range(ready // PIECE_BYTES)]
    assert arena.num_bytes == 3 * PIECE_BYTES + ready


def test_an_arena_may_go_before_its_parts() -> None:
    arena = Arena()
    part = arena.take(100)
    piece = weakref.ref(part.obj)  # type: ignore[arg-type]
    del arena
    gc.collect()
    part[99] = 1
    del part
    assert piece() is None


def test_systems_that_cannot_touch_memory_beforehand_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_POPULATE_WRITE", 12345)
    assert bytes(Arena().take(3)) == bytes(3)


def address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).ctypes.data)
