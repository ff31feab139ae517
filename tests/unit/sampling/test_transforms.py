from __future__ import annotations

import numpy as np
import pytest

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws
from stoker.sampling.sampler import Sampler
from stoker.sampling.transforms import XTC, Temperature

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0).filled_from(BUILT_IN)
SAMPLER = Sampler(vocab_size=8, eog_token_ids=frozenset({7}), token_bytes=lambda token_id: b"%d" % token_id)


@pytest.mark.parametrize(
    "off",
    [
        SamplingParams(),
        SamplingParams(top_n_sigma=0),
        SamplingParams(top_n_sigma=-1),
        SamplingParams(top_k=-1),
        SamplingParams(top_k=0),
        SamplingParams(typical_p=1.0),
        SamplingParams(top_p=1.0),
        SamplingParams(min_p=0.0),
        SamplingParams(xtc_probability=0.0, xtc_threshold=0.1),
        SamplingParams(xtc_probability=0.5, xtc_threshold=0.0),
        SamplingParams(xtc_probability=0.5, xtc_threshold=0.6),
        SamplingParams(xtc_threshold=0.1),
        SamplingParams(dynatemp_range=0.0, dynatemp_exponent=2.0),
        SamplingParams(dry_multiplier=0.0),
        SamplingParams(dry_multiplier=1.0, dry_penalty_last_n=0),
        SamplingParams(dry_multiplier=1.0, dry_base=0.9),
        SamplingParams(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0),
        SamplingParams(repetition_penalty=1.5, penalty_last_n=0),
        SamplingParams(min_tokens=0),
        SamplingParams(ignore_eos=False),
        SamplingParams(logit_bias={}, banned_token_ids=()),
        SamplingParams(mirostat=0),
        SamplingParams(infill=False),
    ],
)
def test_what_is_off_costs_nothing(off: SamplingParams) -> None:
    state = SAMPLER.open(off.filled_from(OFF), (1,), seed=0)
    assert state.edits == ()
    assert state.transforms == ()


def test_the_chain_is_in_the_order_of_llama_cpp() -> None:
    params = SamplingParams(
        min_p=0.1, top_p=0.9, top_k=5, typical_p=0.9, top_n_sigma=1.0, xtc_probability=0.5, infill=True, temperature=0.5
    )
    edits = SamplingParams(logit_bias={1: 1.0}, min_tokens=1, presence_penalty=1.0, dry_multiplier=1.0)
    state = SAMPLER.open(params.filled_from(edits, OFF), (1,), seed=0)
    assert [type(edit).__name__ for edit in state.edits] == ["LogitBias", "MinTokens", "Penalties", "Dry"]
    assert [type(transform).__name__ for transform in state.transforms] == [
        "TopNSigma",
        "TopK",
        "TypicalP",
        "TopP",
        "MinP",
        "XTC",
        "Infill",
        "Temperature",
    ]


def test_mirostat_replaces_the_truncation_but_not_the_edits() -> None:
    params = SamplingParams(mirostat=2, top_k=5, min_p=0.1, infill=True, temperature=0.5, presence_penalty=1.0)
    state = SAMPLER.open(params.filled_from(BUILT_IN), (1,), seed=0)
    assert [type(transform).__name__ for transform in state.transforms] == ["Temperature"]
    assert len(state.edits) == 1


def test_xtc_acts_as_often_as_its_probability_says() -> None:
    candidates = Candidates(np.arange(3), np.log(np.array([0.5, 0.3, 0.2])))
    excluded = sum(len(XTC(0.25, 0.1)(candidates, Draws(4, index))) == 1 for index in range(4000))
    assert 900 < excluded < 1100
    assert all(len(XTC(1.0, 0.1)(candidates, Draws(4, index))) == 1 for index in range(200))


def test_xtc_keeps_the_least_likely_of_the_top_choices_and_all_below() -> None:
    candidates = Candidates(np.arange(4), np.log(np.array([0.2, 0.5, 0.05, 0.25])))
    assert XTC(1.0, 0.2)(candidates, Draws(0, 0)).token_ids.tolist() == [0, 2]
    assert XTC(1.0, 0.21)(candidates, Draws(0, 0)).token_ids.tolist() == [0, 2, 3]
    assert XTC(1.0, 0.4)(candidates, Draws(0, 0)) is candidates


def test_the_smallest_temperatures_leave_the_most_likely_token_without_nan() -> None:
    candidates = Candidates(np.arange(4), np.array([1, 3, 2, 3], dtype=np.float32))
    with np.errstate(over="ignore"):
        assert Temperature(1e-308, 0, 1)(candidates, Draws(0, 0)).weights().tolist() == [0, 1, 0, 1]


def test_a_dynamic_temperature_of_zero_is_greedy() -> None:
    certain = Candidates(np.arange(3), np.array([0, 2000, 1], dtype=np.float32))
    assert Temperature(0.5, 0.5, 1.0)(certain, Draws(0, 0)).token_ids.tolist() == [1]


def test_dynamic_temperature_is_highest_where_all_tokens_are_equally_likely() -> None:
    flat = np.zeros(4)
    assert Temperature(1.0, 0.5, 1.0)._dynamic(flat) == pytest.approx(1.5)
