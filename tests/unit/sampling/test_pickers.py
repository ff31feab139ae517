from __future__ import annotations

import numpy as np
import pytest

from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws, Purpose
from stoker.sampling.pickers import AdaptiveP, Mirostat1, Mirostat2, pick_randomly


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0, -np.inf, 0, -np.inf], dtype=np.float32)
    picked = {pick_randomly(Candidates(np.arange(5), logits), Draws(0, index)) for index in range(300)}
    assert picked == {1, 3}


class LowestDraws(Draws):
    def uniform(self, purpose: Purpose) -> float:
        return 0.0


class HighestDraws(Draws):
    def uniform(self, purpose: Purpose) -> float:
        return 1 - 2.0**-53


def test_the_ends_of_the_interval_meet_possible_tokens() -> None:
    rng = np.random.default_rng(0)
    for size in range(3, 60):
        logits = rng.standard_normal(size)
        logits[[0, -1]] = -np.inf
        candidates = Candidates(np.arange(size), logits)
        assert pick_randomly(candidates, LowestDraws(0, 0)) == 1
        assert pick_randomly(candidates, HighestDraws(0, 0)) == size - 2


def test_mirostat_moves_its_bound_towards_the_surprise_aimed_at() -> None:
    candidates = Candidates(np.arange(4), np.log(np.array([0.5, 0.25, 0.125, 0.125])))
    mirostat = Mirostat2(tau=2.0, eta=0.5, mu=2.5)
    picked = mirostat(candidates, Draws(seed=1, index=0))
    # Only the first two have at most 2.5 bits of surprise; what is observed is renormalised over them.
    surprise = -np.log2({0: 2 / 3, 1: 1 / 3}[picked])
    assert mirostat.mu == pytest.approx(2.5 - 0.5 * (surprise - 2.0))


def test_mirostat_keeps_the_most_likely_token_if_all_are_too_surprising() -> None:
    candidates = Candidates(np.arange(4), np.array([0.0, 1.0, 1.0, 0.0]))
    assert Mirostat2(tau=5.0, eta=0.1, mu=-3.0)(candidates, Draws(1, 0)) == 1


def test_mirostat_1_moves_its_bound_towards_the_surprise_aimed_at() -> None:
    candidates = Candidates(np.arange(4), np.log(np.array([0.5, 0.25, 0.125, 0.125])))
    mirostat = Mirostat1(tau=2.0, eta=0.5, mu=2.5, vocab_size=4)
    kept = mirostat.prepared(candidates)
    assert kept.token_ids.tolist() == [0, 1, 2]
    picked = mirostat(candidates, Draws(seed=1, index=0))
    surprise = -np.log2({0: 4 / 7, 1: 2 / 7, 2: 1 / 7}[picked])
    assert mirostat.mu == pytest.approx(2.5 - 0.5 * (surprise - 2.0))


def test_mirostat_1_does_not_count_impossible_tokens() -> None:
    logits = np.array([0.0, -np.inf, -1.0, -np.inf, -1.5, -np.inf])
    possible = np.flatnonzero(np.isfinite(logits))
    mirostat = Mirostat1(tau=2.0, eta=0.5, mu=2.0, vocab_size=6)
    kept = mirostat.prepared(Candidates(np.arange(6), logits))
    assert kept.token_ids.tolist() == mirostat.prepared(Candidates(possible, logits[possible])).token_ids.tolist()
    assert len(kept) == 2


def test_adaptive_p_draws_near_its_target_and_steers_the_mean() -> None:
    candidates = Candidates(np.arange(4), np.log(np.array([0.7, 0.2, 0.09, 0.01])))
    picker = AdaptiveP(target=0.2, decay=0.9, sum=2.0, weight=10.0)
    assert picker.prepared(candidates).logits.argmax() == 1
    picked = picker(candidates, Draws(seed=1, index=0))
    assert (picker.sum, picker.weight) == pytest.approx((candidates.weights()[picked] * 0.7 + 1.8, 10.0))
    probabilities = np.array([0.7, 0.2, 0.09, 0.01])
    drawn = [probabilities[picker(candidates, Draws(seed=2, index=index))] for index in range(2000)]
    assert np.mean(drawn) == pytest.approx(0.2, abs=0.05)
