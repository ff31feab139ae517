"""Chunks become the arrays of a forward pass, entry for entry; what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from stoker.core.batch import Chunk


def arrays(num_tokens: int = 8, num_chunks: int = 4) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.full(num_tokens, -1, dtype=np.int32), np.full((num_chunks, 4), -1, dtype=np.int32)


def test_entries_and_sizes_of_every_chunk_are_written() -> None:
    tokens, rows = arrays()
    chunks = (Chunk(3, 10, (7, 8, 9), 2), Chunk(0, 0, (5,)), Chunk(2, 4, (6,), 1))
    assert _native.write_batch(chunks, tokens, rows) == (5, 3, False, 0, False)
    assert tokens.tolist() == [7, 8, 9, 5, 6, -1, -1, -1]
    assert rows.tolist() == [[3, 10, 3, 2], [0, 0, 1, 0], [2, 4, 1, 1], [-1] * 4]


def test_adapters_of_one_chunk_are_told() -> None:
    chunks = (Chunk(0, 0, (1,)), Chunk(1, 0, (1,), 1, (("poet", 1.0),)))
    assert _native.write_batch(chunks, *arrays()) == (2, 1, True, 0, False)


def test_rows_of_images_are_counted_from_one_chunk_to_the_next_and_shifts_are_told() -> None:
    tokens, rows = arrays()
    chunks = (Chunk(0, 0, (4, -(2**62), -5)), Chunk(1, 0, (-9, 6), shift=-3))
    assert _native.write_batch(chunks, tokens, rows) == (5, 0, False, 3, True)
    assert tokens.tolist()[:5] == [4, -1, -2, -3, 6]


def test_no_chunks_are_nothing() -> None:
    assert _native.write_batch((), *arrays()) == (0, 0, False, 0, False)


@pytest.mark.parametrize(
    ("num_tokens", "num_chunks", "message"), [(2, 4, "more entries"), (8, 1, "more chunks")], ids=["entries", "chunks"]
)
def test_what_does_not_fit_is_refused(num_tokens: int, num_chunks: int, message: str) -> None:
    chunks = (Chunk(0, 0, (1, 2)), Chunk(1, 0, (3,)))
    with pytest.raises(ValueError, match=message):
        _native.write_batch(chunks, *arrays(num_tokens, num_chunks))


def test_what_is_no_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="a chunk is not"):
        _native.write_batch(((0, 0, (1,)),), *arrays())  # type: ignore[arg-type]
