"""The stage for filling in, against a slow and obvious form of what llama.cpp does."""

from __future__ import annotations

from math import exp, inf

import numpy as np
import pytest

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws
from stoker.sampling.sampler import Sampler

TEXTS = (b"a", b"ab", b"abc", b"b", b"c", b"d", b"e", b"", b"<end>", b"<end>")
ENDS = frozenset({8, 9})
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, infill=True).filled_from(BUILT_IN)
SAMPLER = Sampler(vocab_size=len(TEXTS), eog_token_ids=ENDS, token_bytes=TEXTS.__getitem__)


def left(row: list[float], params: SamplingParams | None = None, num_before: int = 0) -> set[int]:
    """What can be chosen from a row."""
    params = (params or SamplingParams()).filled_from(OFF)
    found: set[int] = set()
    for seed in range(200):
        state = SAMPLER.open(params, (1,), seed=seed)
        for _ in range(num_before):
            state.push(3)
        (choice,) = SAMPLER.sample(np.array([row], dtype=np.float32), [state])
        assert choice.token_id is not None
        found.add(choice.token_id)
    return found


def logits(**probabilities: float) -> list[float]:
    """`t3=0.5`: token 3 has that probability, and what is not named none."""
    row = [-inf] * len(TEXTS)
    for name, p in probabilities.items():
        row[int(name[1:])] = float(np.log(p))
    return row


FLAT = logits(t1=0.16, t3=0.18, t4=0.17, t5=0.17, t6=0.16, t7=0.16)


def expected(row: list[float]) -> set[int]:
    """Pair by pair, as it is written in llama.cpp."""
    order = sorted((i for i, x in enumerate(row) if x > -inf), key=lambda i: -row[i])
    total = sum(exp(row[i]) for i in order)
    p = {i: exp(row[i]) / total for i in order}
    end = sum(p[i] for i in order if i in ENDS)
    if 3 * end * len(row) > 1 - end:
        return {i for i in order if i in ENDS}
    gone: set[int] = set()
    for a in order:
        for b in order:
            if a in gone:
                break
            if a == b or b in gone or {a, b} & ENDS or not TEXTS[a] or not TEXTS[b].startswith(TEXTS[a]):
                continue
            to, from_ = (b, a) if p[b] > p[a] else (a, b)
            p[to] += p[from_]
            gone.add(from_)
    likely = {i for i in order if i not in gone and i not in ENDS and p[i] >= 0.2}
    ends = {i for i in order if i in ENDS}
    kept = sum(p[i] for i in likely | ends)
    return {i for i in likely if p[i] / kept >= 1 / (len(likely) + 1)} | ends or {min(ENDS)}


def test_an_end_that_is_likely_for_how_many_candidates_there_are_is_all_that_is_left():
    assert left(logits(t3=0.6, t4=0.28, t8=0.12)) == {8}
    assert left(logits(t3=0.5, t4=0.47, t8=0.03)) == {3, 4, 8}
    assert left(logits(t3=0.5, t4=0.46, t8=0.04)) == {8}, "impossible tokens count as well"


def test_text_that_is_unlikely_is_dropped():
    assert left(logits(t3=0.7, t4=0.15, t5=0.15)) == {3}
    assert left(logits(t3=0.7, t4=0.3)) == {3}, "likely, but not beside the other one"
    assert left(logits(t3=0.6, t4=0.4)) == {3, 4}


def test_of_texts_that_begin_with_each_other_the_likelier_one_counts_for_both():
    assert left(logits(t0=0.2, t1=0.21, t3=0.45, t4=0.14)) == {1, 3}


def test_the_answer_ends_where_nothing_is_likely_also_if_truncation_has_dropped_the_end():
    assert left(FLAT) == {8}
    assert left([*FLAT[:8], -2.5, -8.0], SamplingParams(top_k=6)) == {8}


@pytest.mark.parametrize(
    "params", [SamplingParams(ignore_eos=True), SamplingParams(min_tokens=1), SamplingParams(banned_token_ids=[8, 9])]
)
def test_an_answer_that_may_not_end_goes_on_with_what_is_likeliest(params: SamplingParams):
    assert left([*FLAT[:8], 3.0, 3.0], params) == {3}


def test_an_answer_may_end_once_it_is_long_enough():
    assert left(FLAT, SamplingParams(min_tokens=1), num_before=1) == {8}


def test_it_counts_at_temperature_0_too_and_after_the_truncation():
    assert left(FLAT, SamplingParams(temperature=0)) == {8}
    assert left(FLAT, SamplingParams(temperature=0, top_k=2)) == {3}
    assert left(logits(t3=0.7, t4=0.3), SamplingParams(temperature=0)) == {3}


@pytest.mark.parametrize("seed", range(40))
def test_it_keeps_what_llama_cpp_keeps(seed: int):
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(len(TEXTS)) * rng.uniform(0.5, 3)).astype(np.float32)
    row[list(ENDS)] -= rng.uniform(0, 12)
    row[rng.random(len(TEXTS)) < 0.2] = -inf
    row[3] = max(row[3], 0)
    kept = expected(row.tolist())
    assert left(row.tolist()) <= kept
    state = SAMPLER.open(OFF, (1,), seed=0)
    (stage,) = state.transforms
    assert set(stage(Candidates(np.arange(len(TEXTS)), row), Draws(0, 0)).token_ids.tolist()) == kept
