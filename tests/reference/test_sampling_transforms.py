"""Every transform against its slow, obvious version, on random rows with ties and impossible tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws
from stoker.sampling.dry import Dry, SequenceBreakers
from stoker.sampling.penalties import Penalties, TokenCounts
from stoker.sampling.pickers import AdaptiveP, Mirostat1, Mirostat2
from stoker.sampling.sampler import Sampler
from stoker.sampling.transforms import XTC, MinP, Temperature, TopK, TopNSigma, TopP, Transform, TypicalP
from tests.reference import sampling_reference as reference
from tests.reference.sampling_reference import Pairs

DRAWS = Draws(seed=1, index=0)


def random_row(seed: int, size: int) -> np.ndarray:
    """Logits of a peaked distribution, with ties, and with impossible tokens in every third row."""
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(size) * rng.uniform(0.3, 4)).astype(np.float32)
    row[rng.integers(0, size, size // 5)] = row[rng.integers(0, size, size // 5)]
    if seed % 3 == 0:
        row[rng.integers(0, size, size // 3)] = -inf
    return row


def candidates_of(row: np.ndarray, *, is_sorted: bool) -> Candidates:
    candidates = Candidates(np.arange(row.size), row)
    return candidates.largest(row.size) if is_sorted else candidates


def pairs_of(row: np.ndarray) -> Pairs:
    return [(i, float(logit)) for i, logit in enumerate(row)]


def assert_same(found: Candidates, expected: Pairs) -> None:
    possible = [(i, logit) for i, logit in expected if logit > -inf]
    by_id = sorted(possible)
    mine = found.without_impossible()
    order = np.argsort(mine.token_ids)
    assert mine.token_ids[order].tolist() == [i for i, _ in by_id]
    want = np.array([logit for _, logit in by_id])
    got = mine.logits[order].astype(np.float64)
    np.testing.assert_allclose(got - got.max(), want - want.max(), rtol=1e-9, atol=1e-9)
    if found.is_sorted:
        assert mine.token_ids.tolist() == [i for i, _ in reference.sort(possible)]
    else:
        assert (np.diff(found.token_ids) > 0).all()


CASES: list[tuple[str, Callable[[float], Transform], Callable[[Pairs, float], Pairs]]] = [
    ("top_n_sigma", lambda x: TopNSigma(3 * x), lambda pairs, x: reference.top_n_sigma(pairs, 3 * x)),
    ("top_k", lambda x: TopK(1 + int(60 * x)), lambda pairs, x: reference.top_k(pairs, 1 + int(60 * x))),
    ("typical_p", TypicalP, reference.typical_p),
    ("top_p", TopP, reference.top_p),
    ("min_p", MinP, reference.min_p),
    ("xtc", lambda x: XTC(1.0, x / 20), lambda pairs, x: reference.xtc(pairs, x / 20)),
    ("temperature", lambda x: Temperature(x, 0, 1), reference.temperature),
    (
        "dynamic temperature",
        lambda x: Temperature(x, 0.7, 1.5),
        lambda pairs, x: reference.dynamic_temperature(pairs, x, 0.7, 1.5),
    ),
]


@pytest.mark.parametrize("size", [2, 37, 1500])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("name", "make", "slow"), CASES, ids=[case[0] for case in CASES])
def test_transform_equals_slow_version(
    name: str, make: Callable[[float], Transform], slow: Callable[[Pairs, float], Pairs], is_sorted: bool, size: int
) -> None:
    for seed in range(1, 13):
        row = random_row(seed, size)
        strength = float(np.random.default_rng(seed).uniform(0.05, 0.999))
        found = make(strength)(candidates_of(row, is_sorted=is_sorted), DRAWS)
        assert_same(found, slow(pairs_of(row), strength))


KEEPING: list[tuple[Callable[[float, int], Transform], Callable[[Pairs, float, int], Pairs]]] = [
    (TypicalP, reference.typical_p),
    (TopP, reference.top_p),
    (MinP, reference.min_p),
    (lambda x, n: XTC(1.0, x / 20, n), lambda pairs, x, n: reference.xtc(pairs, x / 20, n)),
]


@pytest.mark.parametrize("min_keep", [1, 5, 36, 1000])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize(("make", "slow"), KEEPING)
def test_a_minimum_number_is_kept_as_in_the_slow_version(
    make: Callable[[float, int], Transform], slow: Callable[[Pairs, float, int], Pairs], is_sorted: bool, min_keep: int
) -> None:
    for seed in range(1, 13):
        row = random_row(seed, 1500 if seed % 2 else 37)
        strength = float(np.random.default_rng(seed).uniform(0.05, 0.999))
        found = make(strength, min_keep)(candidates_of(row, is_sorted=is_sorted), DRAWS)
        assert_same(found, slow(pairs_of(row), strength, min_keep))


@pytest.mark.parametrize("p", [0.0, 0.5, 0.99, 0.999999])
def test_top_p_and_typical_p_on_a_flat_row_wider_than_the_first_guess(p: float) -> None:
    row = (np.random.default_rng(5).standard_normal(3000) * 0.2).astype(np.float32)
    assert_same(TopP(p)(candidates_of(row, is_sorted=False), DRAWS), reference.top_p(pairs_of(row), p))
    assert_same(TypicalP(p)(candidates_of(row, is_sorted=False), DRAWS), reference.typical_p(pairs_of(row), p))


@pytest.mark.parametrize("mu", [-1.0, 0.5, 3.0, 10.0])
def test_mirostat_truncation_equals_slow_version(mu: float) -> None:
    for seed in range(6):
        row = random_row(seed, 200)
        found = Mirostat2(tau=5, eta=0.1, mu=mu).prepared(candidates_of(row, is_sorted=False))
        assert_same(found, reference.mirostat2(pairs_of(row), mu))


@pytest.mark.parametrize("mu", [-1.0, 0.5, 3.0, 6.0, 10.0, 30.0])
@pytest.mark.parametrize("size", [1, 2, 37, 3000])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_mirostat_1_truncation_equals_slow_version(mu: float, size: int, is_sorted: bool) -> None:
    sizes = set[int]()
    for seed in range(8):
        row = random_row(seed, max(size, 5))[:size]
        row[0] = 1.0
        found = Mirostat1(tau=5, eta=0.1, mu=mu, vocab_size=5000).prepared(candidates_of(row, is_sorted=is_sorted))
        assert_same(found, reference.mirostat1(pairs_of(row), mu, 5000))
        sizes.add(len(found))
    assert size < 3000 or mu != 10.0 or len(sizes) > 3


@pytest.mark.parametrize(("mu", "expected"), [(2000.0, 50), (-2000.0, 1)])
def test_mirostat_1_of_equal_logits_keeps_all_or_one(mu: float, expected: int) -> None:
    equal = candidates_of(np.zeros(50, dtype=np.float32), is_sorted=False)
    assert len(Mirostat1(tau=5, eta=0.1, mu=mu, vocab_size=50).prepared(equal)) == expected
    zipf = candidates_of(-np.log(np.arange(1, 51, dtype=np.float32)), is_sorted=False)
    assert len(Mirostat1(tau=5, eta=0.1, mu=mu, vocab_size=50).prepared(zipf)) == expected


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_adaptive_p_equals_slow_version(target: float) -> None:
    for seed in range(1, 7):
        row = random_row(seed, 200)
        picker = AdaptiveP(target, 0.9, sum=0.25, weight=2.0)
        possible = [pair for pair in pairs_of(row) if pair[1] > -inf]
        for is_sorted in (False, True):
            found = picker.prepared(candidates_of(row, is_sorted=is_sorted))
            assert_same(found, reference.adaptive_p(possible, target, 0.125))


@pytest.mark.parametrize("last_n", [-1, 1, 7, 64])
def test_penalties_equal_slow_version_token_by_token(last_n: int) -> None:
    rng = np.random.default_rng(7)
    history = rng.integers(0, 40, 30).tolist()
    counts = TokenCounts(None if last_n == -1 else last_n, history)
    edit = Penalties(counts, repetition=1.3, presence=0.4, frequency=0.2)
    for token_id in rng.integers(0, 40, 120).tolist():
        row = random_row(token_id, 50)
        expected = reference.penalties(pairs_of(row), history, last_n, 1.3, 0.4, 0.2)
        edit.apply(row)
        np.testing.assert_allclose(row, [logit for _, logit in expected], rtol=1e-5, atol=1e-6)
        history.append(token_id)
        edit.push(token_id)


TEXTS = [b"a", b"b", b"\n", b"ab", b"", b":x", b"c:", b"\xc3", b"\xa9"]


@pytest.mark.parametrize("breakers", [(), ("\n",), ("b:", "é"), ("ab", "c", "xa")])
@pytest.mark.parametrize("allowed_length", [0, 1, 2])
@pytest.mark.parametrize("last_n", [-1, 9, 40])
def test_dry_equals_slow_version_token_by_token(last_n: int, allowed_length: int, breakers: tuple[str, ...]) -> None:
    rng = np.random.default_rng(last_n + 10)
    history = rng.integers(0, len(TEXTS), 50).tolist()
    encoded = tuple(b.encode() for b in breakers)
    edit = Dry(
        multiplier=0.8,
        base=1.5,
        allowed_length=allowed_length,
        window=None if last_n == -1 else last_n,
        breakers=SequenceBreakers(encoded, TEXTS.__getitem__, history),
        history=history,
    )
    num_penalised = 0
    for step in range(120):
        row = np.zeros(len(TEXTS), dtype=np.float32)
        edit.apply(row)
        since = reference.num_since_breaker(history, TEXTS.__getitem__, encoded)
        expected = np.zeros(len(TEXTS))
        for token_id, length in reference.dry_lengths(history, last_n, allowed_length, since).items():
            if not any(b in TEXTS[token_id] for b in encoded):
                expected[token_id] = -0.8 * 1.5 ** (length - allowed_length)
        np.testing.assert_allclose(row, expected, rtol=1e-5)
        assert edit.is_idle == (not row.any())
        num_penalised += int(row.any())
        # Half of the time the text repeats itself.
        history.append(history[-4] if step // 10 % 2 else int(rng.integers(0, len(TEXTS))))
        edit.push(history[-1])
    assert num_penalised > 20


def test_dry_of_a_prompt_equals_dry_followed_token_by_token() -> None:
    history = ([1, 2, 3, 1, 2, 4] * 5 + [1, 1, 1, 1]) * 2
    params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=1, dry_penalty_last_n=33).filled_from(BUILT_IN)
    sampler = Sampler(vocab_size=6, eog_token_ids=frozenset(), token_bytes=lambda i: b"x%d" % i)
    whole = sampler.open(params, history, seed=0)
    followed = sampler.open(params, history[:1], seed=0)
    for token_id in history[1:]:
        followed.push(token_id)
    rows = np.zeros((2, 6), dtype=np.float32)
    whole.edits[0].apply(rows[0])
    followed.edits[0].apply(rows[1])
    assert rows[0].any()
    np.testing.assert_array_equal(rows[0], rows[1])
