"""Tokens are drawn as often as their probabilities say: chi-square tests with fixed seeds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.sampler import Sampler

PROBABILITIES = np.array([0.02, 0.3, 0.05, 0.13, 0.2, 0.05, 0.1, 0.15])
NUM_DRAWS = 8000
# 99.9 % quantiles by degrees of freedom.
CRITICAL = {3: 16.27, 4: 18.47, 7: 24.32}


def counts_along_one_answer(params: SamplingParams, row: np.ndarray) -> Counter[int]:
    sampler = Sampler(vocab_size=row.size, eog_token_ids=frozenset(), token_bytes=lambda _: b"")
    state = sampler.open(params.filled_from(BUILT_IN), (0,), seed=0)
    return Counter(sampler.sample(row[None], [state])[0].token_id or 0 for _ in range(NUM_DRAWS))


def counts_over_seeds(params: SamplingParams, row: np.ndarray) -> Counter[int]:
    sampler = Sampler(vocab_size=row.size, eog_token_ids=frozenset(), token_bytes=lambda _: b"")
    states = [sampler.open(params.filled_from(BUILT_IN), (0,), seed) for seed in range(NUM_DRAWS)]
    choices = sampler.sample(np.tile(row, (NUM_DRAWS, 1)), states)
    return Counter(choice.token_id or 0 for choice in choices)


@pytest.mark.parametrize("count", [counts_along_one_answer, counts_over_seeds])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(temperature=1, top_k=0, top_p=1), PROBABILITIES),
        pytest.param(SamplingParams(temperature=0.5, top_k=0, top_p=1), PROBABILITIES**2, marks=pytest.mark.slow),
        pytest.param(
            SamplingParams(temperature=1, top_k=4, top_p=1),
            PROBABILITIES * (PROBABILITIES > 0.12),
            marks=pytest.mark.slow,
        ),
        (SamplingParams(temperature=1, top_k=0, top_p=0.85), PROBABILITIES * (PROBABILITIES > 0.06)),
        (SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0.4), PROBABILITIES * (PROBABILITIES > 0.12)),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p"],
)
def test_draws_follow_the_distribution(count, params: SamplingParams, expected: np.ndarray) -> None:
    row = np.log(PROBABILITIES).astype(np.float32)
    found = count(params, row)
    expected = expected / expected.sum() * NUM_DRAWS
    possible = np.flatnonzero(expected)
    assert found.keys() <= set(possible.tolist())
    chi_square = sum((found[i] - expected[i]) ** 2 / expected[i] for i in possible.tolist())
    assert chi_square < CRITICAL[possible.size - 1]


def test_neighbouring_draws_are_independent() -> None:
    sampler = Sampler(vocab_size=4, eog_token_ids=frozenset(), token_bytes=lambda _: b"")
    params = SamplingParams(temperature=1, top_k=0, top_p=1).filled_from(BUILT_IN)
    state = sampler.open(params, (0,), seed=0)
    row = np.zeros((1, 4), dtype=np.float32)
    drawn = [sampler.sample(row, [state])[0].token_id or 0 for _ in range(NUM_DRAWS)]
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    expected = NUM_DRAWS / 2 / 16
    # 15 degrees of freedom, 99.9 %.
    assert sum((pairs[a, b] - expected) ** 2 / expected for a in range(4) for b in range(4)) < 37.7
