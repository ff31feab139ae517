"""Sampling stages in any order: against slow versions in the same order, and against a chain of libllama's samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.core.samplers import USUAL
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws
from stoker.sampling.pickers import drawn_from
from stoker.sampling.sampler import RowState, Sampler
from tests.reference import sampling_reference as reference
from tests.reference.sampling_reference import Pairs
from tests.reference.test_sampling_libllama import apply_native, llama_cpp, native_chain

VOCAB = 400
NAMES = [name for name in USUAL if name != "infill"]
Numbers = Mapping[str, Any]
NUM_ORDERS = 120


def numbers_of(rng: np.random.Generator, **others: Any) -> dict[str, Any]:
    found = {
        "repetition_penalty": rng.choice([1.0, 1.3, 0.8]),
        "presence_penalty": rng.choice([0.0, 0.4]),
        "frequency_penalty": rng.choice([0.0, 0.2]),
        "penalty_last_n": int(rng.choice([0, 7, 64])),
        "dry_multiplier": rng.choice([0.0, 0.8]),
        "dry_base": 1.5,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 100,
        "top_n_sigma": rng.choice([0.0, 2.0]),
        "top_k": int(rng.choice([0, 5, 60])),
        "typical_p": rng.choice([1.0, 0.9]),
        "top_p": rng.choice([1.0, 0.9]),
        "min_p": rng.choice([0.0, 0.01]),
        "xtc_probability": rng.choice([0.0, 1.0]),
        "xtc_threshold": 0.08,
        "temperature": rng.choice([0.6, 1.0, 1.7]),
        "dynatemp_range": rng.choice([0.0, 0.4]),
        "dynatemp_exponent": 1.2,
        "min_keep": int(rng.choice([0, 1, 4])),
    } | others
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in found.items()}


def orders() -> list[tuple[int, tuple[str, ...]]]:
    found: list[tuple[int, tuple[str, ...]]] = []
    for seed in range(NUM_ORDERS):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, len(NAMES) + 1))
        order = rng.permutation(NAMES)[:size].tolist()
        found.append((seed, tuple(order + order[:1] if seed % 10 == 0 else order)))
    return found


def rows_of(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = [(rng.standard_normal(VOCAB) * rng.uniform(1, 3)).astype(np.float32) for _ in range(4)]
    for row in rows:
        row[rng.integers(0, VOCAB, 20)] += rng.uniform(1, 6, 20).astype(np.float32)
        row[:30] += rng.uniform(0, 5, 30).astype(np.float32)
    return rows


def history_of(seed: int) -> list[int]:
    rng = np.random.default_rng(seed + 1000)
    block = rng.integers(0, 30, 8).tolist()
    return [*rng.integers(0, 30, 40).tolist(), *block, int(rng.integers(0, 30)), *block[:4]]


def open_row(samplers: Sequence[str], numbers: Numbers, history: Sequence[int]) -> RowState:
    sampler = Sampler(vocab_size=VOCAB, eog_token_ids=frozenset({2}), token_bytes=lambda i: b"<%d>" % i)
    params = SamplingParams(**numbers, dry_sequence_breakers=(), samplers=samplers)
    state = sampler.open(params.filled_from(BUILT_IN), history[:-3], seed=3)
    for token_id in history[-3:]:
        state.push(token_id)
    return state


def ours(state: RowState, row: np.ndarray) -> dict[int, float]:
    """Token id -> probability of the candidates that a token is drawn from."""
    edited = row.copy()
    for edit in state.edits:
        edit.apply(edited)
    candidates = Candidates(np.arange(row.size), edited)
    for transform in state.transforms:
        candidates = transform(candidates, Draws(0, 0))
    return probabilities(drawn_from(state.pick, candidates))


def probabilities(candidates: Candidates) -> dict[int, float]:
    weights = candidates.weights()
    pairs = zip(candidates.token_ids.tolist(), (weights / weights.sum()).tolist(), strict=True)
    return {token_id: p for token_id, p in pairs if p > 1e-30}


def slowly(samplers: Sequence[str], numbers: Numbers, history: Sequence[int], row: np.ndarray) -> dict[int, float]:
    pairs: Pairs = [(i, float(logit)) for i, logit in enumerate(row)]
    for name in samplers:
        pairs = SLOW[name](pairs, numbers, history)
    shares = zip(pairs, reference.probabilities(pairs), strict=True)
    return {token_id: p for (token_id, _), p in shares if p > 1e-30}


def slow_penalties(pairs: Pairs, numbers: Numbers, history: Sequence[int]) -> Pairs:
    last_n, repetition = numbers["penalty_last_n"], numbers["repetition_penalty"]
    presence, frequency = numbers["presence_penalty"], numbers["frequency_penalty"]
    return reference.penalties(pairs, history, last_n, repetition, presence, frequency)


def slow_dry(pairs: Pairs, numbers: Numbers, history: Sequence[int]) -> Pairs:
    lengths = reference.dry_lengths(history, 100, 1, None)
    by = numbers["dry_multiplier"]
    return [(i, logit - by * 1.5 ** (lengths[i] - 1) if i in lengths else logit) for i, logit in pairs]


def slow_sigma(pairs: Pairs, numbers: Numbers, history: Sequence[int]) -> Pairs:
    """As in libllama, what is dropped stays a candidate, with a logit of -inf."""
    kept = {i for i, _ in reference.top_n_sigma(pairs, numbers["top_n_sigma"])}
    return [(i, logit if i in kept else -inf) for i, logit in pairs]


def slow_temperature(pairs: Pairs, numbers: Numbers, history: Sequence[int]) -> Pairs:
    value, spread = numbers["temperature"], numbers["dynatemp_range"]
    if spread:
        return reference.dynamic_temperature(pairs, value, spread, numbers["dynatemp_exponent"])
    return reference.temperature(pairs, value)


Slow = Callable[[Pairs, Numbers, Sequence[int]], Pairs]
SLOW: Mapping[str, Slow] = {
    "penalties": slow_penalties,
    "dry": slow_dry,
    "top_n_sigma": lambda pairs, n, _: slow_sigma(pairs, n, _) if n["top_n_sigma"] else pairs,
    "top_k": lambda pairs, n, _: reference.top_k(pairs, n["top_k"]) if n["top_k"] else pairs,
    "typ_p": lambda pairs, n, _: (
        reference.typical_p(pairs, n["typical_p"], n["min_keep"]) if n["typical_p"] < 1 else pairs
    ),
    "top_p": lambda pairs, n, _: reference.top_p(pairs, n["top_p"], n["min_keep"]) if n["top_p"] < 1 else pairs,
    "min_p": lambda pairs, n, _: reference.min_p(pairs, n["min_p"], n["min_keep"]) if n["min_p"] else pairs,
    "xtc": lambda pairs, n, _: (
        reference.xtc(pairs, n["xtc_threshold"], n["min_keep"]) if n["xtc_probability"] else pairs
    ),
    "temperature": slow_temperature,
}


def natively(name: str, numbers: Numbers) -> object:
    n, keep = numbers, numbers["min_keep"]
    match name:
        case "penalties":
            frequency, presence = n["frequency_penalty"], n["presence_penalty"]
            return llama_cpp.llama_sampler_init_penalties(
                VOCAB, n["penalty_last_n"], n["repetition_penalty"], frequency, presence
            )
        case "dry":
            return llama_cpp.llama_sampler_init_dry(None, n["dry_multiplier"], 1.5, 1, 100, None, 0)
        case "top_n_sigma":
            return llama_cpp.llama_sampler_init_top_n_sigma(n["top_n_sigma"])
        case "top_k":
            return llama_cpp.llama_sampler_init_top_k(n["top_k"])
        case "typ_p":
            return llama_cpp.llama_sampler_init_typical(n["typical_p"], keep)
        case "top_p":
            return llama_cpp.llama_sampler_init_top_p(n["top_p"], keep)
        case "min_p":
            return llama_cpp.llama_sampler_init_min_p(n["min_p"], keep)
        case "xtc":
            return llama_cpp.llama_sampler_init_xtc(n["xtc_probability"], n["xtc_threshold"], keep, 1)
        case _:
            return llama_cpp.llama_sampler_init_temp_ext(n["temperature"], n["dynatemp_range"], n["dynatemp_exponent"])


def assert_same(found: dict[int, float], expected: dict[int, float], tolerance: float) -> None:
    assert found.keys() == {i for i, p in expected.items() if p > 1e-30}
    assert max(abs(found[i] - expected[i]) for i in found) < tolerance


@pytest.mark.parametrize(("seed", "order"), orders())
def test_an_order_equals_the_slow_versions_in_this_order(seed: int, order: tuple[str, ...]) -> None:
    numbers, history = numbers_of(np.random.default_rng(seed)), history_of(seed)
    state = open_row(order, numbers, history)
    for row in rows_of(seed):
        assert_same(ours(state, row), slowly(order, numbers, history, row), 1e-6)


@pytest.mark.parametrize(("seed", "order"), orders())
def test_an_order_equals_a_chain_of_libllama(seed: int, order: tuple[str, ...]) -> None:
    numbers, history = numbers_of(np.random.default_rng(seed)), history_of(seed)
    if "typ_p" in order:  # libllama's entropy is NaN beside logits of -inf
        numbers["top_n_sigma"] = 0.0
    state = open_row(order, numbers, history)
    with native_chain(*(natively(name, numbers) for name in order)) as chain:
        for token_id in history:
            llama_cpp.llama_sampler_accept(chain, token_id)
        for row in rows_of(seed):
            assert_same(ours(state, row), apply_native(chain, row), 1e-4)


@pytest.mark.parametrize("place", range(len(NAMES)))
def test_a_temperature_of_zero_at_any_place(place: int) -> None:
    order = [name for name in NAMES if name != "temperature"]
    order.insert(place, "temperature")
    for seed in range(10):
        numbers = numbers_of(np.random.default_rng(seed), temperature=0.0, dynatemp_range=0.0)
        if numbers["typical_p"] < 1:
            numbers["top_n_sigma"] = 0.0
        history = history_of(seed)
        state = open_row(order, numbers, history)
        with native_chain(*(natively(name, numbers) for name in order)) as chain:
            for token_id in history:
                llama_cpp.llama_sampler_accept(chain, token_id)
            for row in rows_of(seed):
                assert ours(state, row).keys() == apply_native(chain, row).keys()
