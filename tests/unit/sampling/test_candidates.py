from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.sampling.candidates import Candidates, largest_positions


@given(
    values=st.lists(st.sampled_from([-np.inf, -3.5, -1.0, 0.0, 0.5, 2.0, 2.5, 7.0]), min_size=1, max_size=400),
    share=st.floats(0, 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_largest_positions_are_those_of_a_stable_sort(values: list[float], share: float, dtype: type) -> None:
    count = max(1, int(share * share * len(values)))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert largest_positions(np.array(values, dtype=dtype), count).tolist() == expected


@pytest.mark.parametrize("size", [1000, 49_152, 50_257])
@pytest.mark.parametrize("count", [1, 40, 3000])
def test_largest_positions_of_a_wide_row(size: int, count: int) -> None:
    rng = np.random.default_rng(size)
    for row in (rng.standard_normal(size), np.arange(size), np.zeros(size), np.round(rng.standard_normal(size), 1)):
        row = row.astype(np.float32)
        assert largest_positions(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


def test_sorted_candidates_are_cut_without_sorting_again() -> None:
    candidates = Candidates(np.array([4, 9, 2]), np.array([3.0, 3.0, 1.0]), is_sorted=True)
    assert candidates.largest(2).token_ids.tolist() == [4, 9]
    assert candidates.largest(9).token_ids.tolist() == [4, 9, 2]


def test_weights_are_relative_to_the_largest() -> None:
    candidates = Candidates(np.arange(3), np.array([1e4, -np.inf, 1e4 - 1], dtype=np.float32))
    np.testing.assert_allclose(candidates.weights(), [1, 0, np.exp(-1)])
    assert candidates.without_impossible().token_ids.tolist() == [0, 2]
