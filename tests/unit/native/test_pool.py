"""The threads of a forward pass: each piece once, stage after stage, and how often they write to the same memory."""

from __future__ import annotations

import pytest

from stoker import _native

SIZES = ([1], [0, 3, 0, 0, 5], [1, 1, 1], [7, 64, 1, 200], [1000, 3])


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8, 9, 16, 17, 64, 70])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_piece_is_computed_once_and_in_its_stage(num_threads: int, sizes: list[int]) -> None:
    num_stages, _, _ = _native.run_pool(num_threads, sizes, 20)
    assert num_stages == 20 * (sum(size > 0 for size in sizes) + 1)


@pytest.mark.parametrize("num_threads", [2, 9, 17])
def test_a_slow_core_keeps_others_waiting_for_one_piece_alone(num_threads: int) -> None:
    """As an efficiency core, or one that another process uses: the others take the rest of its range."""
    for held in range(1, num_threads, 3):
        assert _native.run_pool(num_threads, [4 * num_threads, 1, 40], 10, held)[0] == 10 * 4


def test_a_pool_of_nothing_ends() -> None:
    assert _native.run_pool(3, [], 2)[0] == 2
    assert _native.run_pool(3, [0, 0], 2)[0] == 2


@pytest.mark.parametrize("num_threads", [1, 2, 8, 16, 64, 512])
def test_a_thread_writes_to_shared_memory_as_often_with_many_threads_and_pieces_as_with_few(num_threads: int) -> None:
    """Twice for its own range, and its share of the groups above; before, it did so twice for each piece."""
    for pieces_per_thread in (1, 4, 100):
        num_stages, num_writes, _ = _native.run_pool(num_threads, [num_threads * pieces_per_thread] * 10, 3)
        of_threads = num_writes - 2 * num_stages
        stages = num_stages - 3  # of each run the last one only ends it
        groups, above = 0, num_threads
        while above > 1:
            above = -(-above // 8)
            groups += above
        assert of_threads == stages * (2 * num_threads + groups - (num_threads > 1)), pieces_per_thread
