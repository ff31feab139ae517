from __future__ import annotations

from math import inf

import numpy as np
import pytest

from stoker.sampling.logprobs import token_logprobs


def test_logprobs_are_a_natural_log_softmax() -> None:
    row = np.log(np.array([0.1, 0.6, 0.05, 0.25], dtype=np.float32)) + 3
    logprob, top = token_logprobs(row.astype(np.float32), 2, 3)
    assert logprob == pytest.approx(np.log(0.05), abs=1e-6)
    assert [token_id for token_id, _ in top] == [1, 3, 0]
    assert [np.exp(value) for _, value in top] == pytest.approx([0.6, 0.25, 0.1], abs=1e-6)


def test_ties_are_listed_by_id_and_impossible_tokens_are_left_out() -> None:
    row = np.array([-inf, 2, 2, -inf], dtype=np.float32)
    assert token_logprobs(row, 1, 4)[1] == ((1, pytest.approx(np.log(0.5))), (2, pytest.approx(np.log(0.5))))


def test_huge_logits_do_not_overflow() -> None:
    row = np.array([3e38, -3e38, 3e38], dtype=np.float32)
    assert token_logprobs(row, 0, 0) == (pytest.approx(np.log(0.5), rel=1e-6), ())
