"""A sliding-window model far past its window: copies and cuts must still read the model's own KV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.llama import LlamaBackend
from stoker.core.batch import Chunk, CopyPrefix, Truncate
from tests.reference.llama_runs import Rows, assert_same, open_backend, step

pytestmark = pytest.mark.slow

WINDOW = 512
NUM_ROWS = 20


@pytest.fixture(scope="module")
def shared(gemma3_path: Path) -> Iterator[LlamaBackend]:
    with open_backend(gemma3_path, kv_tokens=2048) as backend:
        yield backend


@pytest.fixture
def backend(shared: LlamaBackend) -> Iterator[LlamaBackend]:
    yield shared
    step(shared, ops=[Truncate(slot, 0) for slot in range(shared.info.num_slots)])


@pytest.fixture(scope="module")
def prompt(shared: LlamaBackend) -> list[int]:
    chapters = [
        f"Chapter {n}: {n} ships left port {n % 7}, and {n * 3} came back by the {n}th cape." for n in range(60)
    ]
    bos = shared.tokenizer.bos_token_id
    assert bos is not None
    token_ids = [bos, *shared.tokenizer.encode(" ".join(chapters))][:1100]
    assert len(token_ids) == 1100 > 2 * WINDOW
    return token_ids


@pytest.mark.parametrize("length", [100, 700])
def test_copies_and_cuts_far_behind_the_end_equal_fresh(backend: LlamaBackend, prompt: list[int], length: int) -> None:
    fresh = rows_behind(backend, 0, prompt, length)
    fill(backend, 0, prompt, start=length + NUM_ROWS)
    step(backend, ops=[CopyPrefix(source=0, target=1, length=length), Truncate(0, length)])
    assert_same(rows_behind(backend, 1, prompt, length, resident=length), fresh)
    assert_same(rows_behind(backend, 0, prompt, length, resident=length), fresh)


def test_cells_outside_the_window_are_not_given_to_others(backend: LlamaBackend, prompt: list[int]) -> None:
    fill(backend, 1, prompt[:10])
    fresh = rows_behind(backend, 0, prompt, 100)
    fill(backend, 0, prompt, start=100 + NUM_ROWS)
    # Ten cells are free in front of slot 0's; the search for forty begins there and goes on through slot 0's.
    step(backend, ops=[Truncate(1, 0)])
    fill(backend, 2, prompt[200:240])
    step(backend, ops=[Truncate(0, 100)])
    assert_same(rows_behind(backend, 0, prompt, 100, resident=100), fresh)


def test_slots_are_halved_for_the_twins(gemma3_path: Path) -> None:
    with open_backend(gemma3_path, num_slots=256, kv_tokens=256, max_batch_tokens=16) as backend:
        assert backend.info.num_slots == 127
        assert step(backend, Chunk(126, 0, (5, 6), 1)).shape == (1, backend.info.vocab_size)


def fill(backend: LlamaBackend, slot: int, token_ids: list[int], *, start: int = 0) -> None:
    """Computes `token_ids[start:]` at their positions, without rows."""
    limit = backend.info.max_batch_tokens
    for at in range(start, len(token_ids), limit):
        step(backend, Chunk(slot, at, tuple(token_ids[at : at + limit])))


def rows_behind(backend: LlamaBackend, slot: int, token_ids: list[int], length: int, *, resident: int = 0) -> Rows:
    """The rows of the tokens that follow the first `length`, of which `resident` are in the slot already."""
    fill(backend, slot, token_ids[:length], start=resident)
    return step(backend, Chunk(slot, length, tuple(token_ids[length : length + NUM_ROWS]), NUM_ROWS))
