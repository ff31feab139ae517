from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.sampling.penalties import Penalties, TokenCounts


@given(
    prompt=st.lists(st.integers(0, 60), max_size=80),
    completion=st.lists(st.integers(0, 60), max_size=80),
    window=st.none() | st.integers(1, 50),
)
def test_counts_are_those_of_the_window(prompt: list[int], completion: list[int], window: int | None) -> None:
    counts = TokenCounts(window, prompt)
    for token_id in completion:
        counts.push(token_id)
    history = prompt + completion
    recent = history if window is None else history[-window:]
    assert dict(zip(counts.token_ids.tolist(), counts.counts.tolist(), strict=True)) == Counter(recent)


def test_the_repetition_penalty_applies_once_however_often_a_token_occurred() -> None:
    edit = Penalties(TokenCounts(None, [0, 0, 0, 1]), repetition=2.0, presence=0.0, frequency=0.0)
    row = np.array([8, -8, 8], dtype=np.float32)
    edit.apply(row)
    assert row.tolist() == [4, -16, 8]


def test_presence_counts_once_and_frequency_every_time() -> None:
    edit = Penalties(TokenCounts(None, [0, 0, 0, 1]), repetition=1.0, presence=0.5, frequency=1.0)
    row = np.zeros(3, dtype=np.float32)
    edit.apply(row)
    assert row.tolist() == [-3.5, -1.5, 0]


def test_a_token_that_left_the_window_is_penalised_no_more() -> None:
    edit = Penalties(TokenCounts(2, [0, 1]), repetition=1.0, presence=1.0, frequency=0.0)
    edit.push(2)
    row = np.zeros(3, dtype=np.float32)
    edit.apply(row)
    assert row.tolist() == [0, -1, -1]


def test_penalties_neither_ban_a_token_nor_lift_a_ban() -> None:
    edit = Penalties(TokenCounts(None, [0, 1]), repetition=1000.0, presence=0.0, frequency=-100.0)
    row = np.array([-inf, -3e38], dtype=np.float32)
    with np.errstate(over="ignore"):
        edit.apply(row)
    assert row[0] == -inf
    assert np.isfinite(row[1])
