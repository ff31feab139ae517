from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.errors import InvalidInput
from stoker.sampling.sampler import Choice, RowState, Sampler

VOCAB = 16
EOG = frozenset({1, 2})
GREEDY = SamplingParams(temperature=0)


def make_sampler() -> Sampler:
    return Sampler(vocab_size=VOCAB, eog_token_ids=EOG, token_bytes=lambda token_id: b"<%d>" % token_id)


def open_row(params: SamplingParams, prompt: tuple[int, ...] = (5,), seed: int = 0) -> RowState:
    return make_sampler().open(params.filled_from(BUILT_IN), prompt, seed)


def row_of(values: dict[int, float] | None = None) -> np.ndarray:
    row = np.zeros(VOCAB, dtype=np.float32)
    for token_id, logit in (values or {}).items():
        row[token_id] = logit
    return row


def choose(params: SamplingParams, row: np.ndarray, num_tokens: int = 1) -> list[int | None]:
    """The tokens chosen if the model gives the same row again and again."""
    sampler, state = make_sampler(), open_row(params)
    return [sampler.sample(row[None], [state])[0].token_id for _ in range(num_tokens)]


def test_greedy_takes_the_largest_and_of_equal_ones_the_lowest_id() -> None:
    assert choose(GREEDY, row_of({9: 2, 4: 2})) == [4]
    assert choose(SamplingParams(temperature=0, allowed_token_ids=[9, 7, 8]), row_of({9: 2, 8: 2, 4: 5})) == [8]


def test_top_k_of_equal_logits_keeps_the_lowest_ids() -> None:
    chosen = choose(SamplingParams(top_k=3, top_p=1.0), row_of(), num_tokens=60)
    assert set(chosen) == {0, 1, 2}


def test_greedy_ignores_what_only_shapes_the_draw() -> None:
    params = SamplingParams(temperature=0, mirostat=2, dynatemp_range=3.0, typical_p=0.1, xtc_probability=1.0)
    assert choose(params, row_of({3: 1.0, 4: 0.9})) == [3]
    assert choose(SamplingParams(temperature=0, min_p=0.5, top_p=0.1), row_of({3: 1.0, 4: 0.9})) == [3]


def test_greedy_takes_the_largest_of_what_stages_leave_that_may_drop_it() -> None:
    row = row_of({3: 9.0, 4: 8.9, 5: 8.0})
    assert choose(SamplingParams(temperature=0, xtc_probability=1.0, xtc_threshold=0.2), row) == [4]
    assert choose(SamplingParams(temperature=0, typical_p=0.1), row) == [4]
    moved = SamplingParams(temperature=0, samplers=["temperature", "xtc"], xtc_probability=1.0, xtc_threshold=0.2)
    assert choose(moved, row) == [3]


def test_a_dynamic_temperature_around_zero_is_not_greedy() -> None:
    chosen = choose(SamplingParams(temperature=0, dynatemp_range=3.0), row_of({3: 1.0, 4: 0.9}), num_tokens=60)
    assert len(set(chosen)) > 2


def test_the_caller_s_logits_are_only_read() -> None:
    sampler = make_sampler()
    params = SamplingParams(logit_bias={3: 9}, repetition_penalty=2.0, min_tokens=4, logprobs=2)
    states = [sampler.open(p.filled_from(BUILT_IN), (5,), 0) for p in (GREEDY, params, SamplingParams(mirostat=2))]
    logits = np.random.default_rng(0).standard_normal((3, VOCAB)).astype(np.float32)
    logits.flags.writeable = False
    assert all(choice.token_id is not None for choice in sampler.sample(logits, states))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_edits_leave_the_caller_s_logits_as_they_were(temperature: float) -> None:
    params = SamplingParams(
        temperature=temperature, logit_bias={3: 9, 5: -2}, banned_token_ids=[3, 4], repetition_penalty=2.0, logprobs=1
    )
    sampler = make_sampler()
    states = [sampler.open(params.filled_from(BUILT_IN), (5, 6, 5, 3), 0) for _ in range(2)]
    logits = np.random.default_rng(0).standard_normal((2, VOCAB)).astype(np.float32)
    logits[1] = -np.inf
    logits[1, 4] = 1.0
    before = logits.copy()
    choices = sampler.sample(logits, states)
    assert (choices[0].token_id is None, choices[1].token_id is None) == (False, True)
    assert logits.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ({5: -1.0}, 3),  # not the largest, and lowered
        ({3: -9.0}, 5),  # the largest, lowered
        ({5: 9.0}, 5),  # another one, raised above it
        ({5: 1.0}, 3),  # raised to the same: the lowest id wins
        ({2: 2.0}, 2),
    ],
)
def test_greedy_takes_the_largest_of_the_edited_row(bias: dict[int, float], expected: int) -> None:
    assert choose(SamplingParams(temperature=0, logit_bias=bias), row_of({3: 2.0, 5: 1.0})) == [expected]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(mirostat=2), SamplingParams(top_k=0)])
@pytest.mark.parametrize("bad", [nan, inf])
def test_an_unusable_row_has_no_choice_and_its_neighbours_do(params: SamplingParams, bad: float) -> None:
    sampler = make_sampler()
    states = [sampler.open(params.filled_from(BUILT_IN), (5,), seed) for seed in range(3)]
    logits = np.stack([row_of({3: 9}), row_of({7: bad, 3: 99}), row_of({4: 9})])
    alone = [choose(params, logits[0])[0], None, None]
    choices = sampler.sample(logits, states)
    assert choices[1] == Choice(token_id=None)
    assert choices[0].token_id == alone[0]
    assert choices[2].token_id is not None
    assert [state.num_completion for state in states] == [1, 0, 1]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(logit_bias={3: 1.0})])
def test_a_row_without_a_finite_logit_has_no_choice(params: SamplingParams) -> None:
    assert choose(params, np.full(VOCAB, -inf, dtype=np.float32)) == [None]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_after_the_masks_is_no_choice(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, allowed_token_ids=[1, 2, 3], min_tokens=1, top_k=0)
    assert choose(params, row_of({3: -inf})) == [None]
    only_banned = np.full(VOCAB, -inf, dtype=np.float32)
    only_banned[6] = 1
    assert choose(SamplingParams(temperature=temperature, banned_token_ids=[6]), only_banned) == [None]


def test_min_tokens_bans_every_end_until_there_are_enough_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[9])
    row = row_of({1: 9, 9: 8, 2: 7, 4: 6})
    assert choose(params, row, num_tokens=5) == [4, 4, 4, 1, 1]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(allowed_token_ids=[5], stop_token_ids=[5], min_tokens=3),
        SamplingParams(allowed_token_ids=[1, 2, 5], banned_token_ids=[5], min_tokens=1),
        SamplingParams(stop_token_ids=range(VOCAB), min_tokens=1),
        SamplingParams(allowed_token_ids=[1], ignore_eos=True),
    ],
)
def test_what_leaves_no_first_token_is_refused(params: SamplingParams) -> None:
    with pytest.raises(InvalidInput, match="leave no token to choose"):
        open_row(params)
    open_row(replace(params, min_tokens=0, ignore_eos=False))


def test_ignore_eos_bans_the_end_of_generation_set_only() -> None:
    params = SamplingParams(temperature=0, ignore_eos=True, stop_token_ids=[9])
    assert choose(params, row_of({1: 9, 2: 8, 9: 7, 4: 6}), num_tokens=3) == [9, 9, 9]


def test_bias_ban_and_allow() -> None:
    row = row_of({3: 5, 4: 4})
    assert choose(SamplingParams(temperature=0, logit_bias={6: 7.5}), row) == [6]
    assert choose(SamplingParams(temperature=0, logit_bias={3: -inf}), row) == [4]
    assert choose(SamplingParams(temperature=0, banned_token_ids=[3]), row) == [4]
    assert choose(SamplingParams(temperature=0, banned_token_ids=[3], logit_bias={3: 100}), row) == [4]
    assert choose(SamplingParams(temperature=0, allowed_token_ids=[11, 10, 11]), row) == [10]
    assert set(choose(SamplingParams(temperature=5, allowed_token_ids=[11, 10], top_k=0), row, 40)) == {10, 11}


def test_a_bias_beyond_float32_is_the_strongest_bias() -> None:
    assert choose(SamplingParams(temperature=0, logit_bias={6: 1e300}), row_of({3: 5})) == [6]
    assert choose(SamplingParams(temperature=0, logit_bias={3: -1e300}), row_of({3: 5})) == [0]


def test_repetition_penalty_looks_at_the_prompt_and_at_the_completion() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0, penalty_last_n=-1)
    assert choose(params, row_of({5: 8, 6: 7, 7: 6, 8: 3.6}), num_tokens=4) == [6, 7, 5, 5]


def test_the_order_is_bias_before_penalties_before_truncation_before_temperature() -> None:
    # 5 is in the prompt: (10 + 2) / 4 = 3, not 10 / 4 + 2 = 4.5.
    params = SamplingParams(temperature=0, logit_bias={5: 2.0}, repetition_penalty=4.0)
    assert choose(params, row_of({5: 10, 6: 3.5})) == [6]
    # At temperature 1 the third token has less than 5 % of the first; at temperature 8 it would not.
    params = SamplingParams(temperature=8, min_p=0.05, top_k=0, top_p=1.0)
    assert set(choose(params, row_of({5: 30, 6: 29, 7: 26}), 60)) == {5, 6}


def test_parameters_that_leave_no_token_are_refused() -> None:
    for params in (
        SamplingParams(allowed_token_ids=[3], banned_token_ids=[3, 4]),
        SamplingParams(allowed_token_ids=[1, 2], ignore_eos=True),
        SamplingParams(allowed_token_ids=[3], logit_bias={3: -inf}),
        SamplingParams(banned_token_ids=range(VOCAB)),
    ):
        with pytest.raises(InvalidInput) as caught:
            open_row(params)
        assert caught.value.fields["parameter"] == "allowed_token_ids"


def test_an_empty_sequence_breaker_is_refused() -> None:
    with pytest.raises(InvalidInput):
        open_row(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=["\n", ""]))


def test_the_seed_decides_and_zero_is_a_seed() -> None:
    row = row_of()

    def answer(seed: int) -> list[int | None]:
        sampler, state = make_sampler(), open_row(SamplingParams(), seed=seed)
        return [sampler.sample(row[None], [state])[0].token_id for _ in range(20)]

    assert answer(0) == answer(0)
    assert len({tuple(answer(seed)) for seed in (0, 1, 2, 2**63, 2**64 - 1)}) == 5


def test_no_rows() -> None:
    assert make_sampler().sample(np.zeros((0, VOCAB), dtype=np.float32), []) == []


def test_logits_with_gaps_between_rows_and_values_are_the_same_logits() -> None:
    wide = np.random.default_rng(1).standard_normal((4, 2 * VOCAB)).astype(np.float32)
    sampler = make_sampler()

    def answer(logits: np.ndarray) -> list[Choice]:
        params = SamplingParams(logprobs=3).filled_from(BUILT_IN)
        return sampler.sample(logits, [sampler.open(params, (5,), seed) for seed in range(4)])

    assert answer(wide[:, ::2]) == answer(wide[:, ::2].copy())
    assert answer(wide[:, 3 : 3 + VOCAB]) == answer(wide[:, 3 : 3 + VOCAB].copy())


def test_logprobs_are_of_the_raw_row_and_only_when_asked_for() -> None:
    row = row_of({3: 2, 4: 1})
    sampler = make_sampler()
    biased = SamplingParams(temperature=0, logit_bias={7: 9.0}, logprobs=2).filled_from(BUILT_IN)
    states = [sampler.open(p, (5,), 0) for p in (biased, GREEDY.filled_from(BUILT_IN))]
    with_logprobs, without = sampler.sample(np.stack([row, row]), states)
    normalizer = np.log(np.exp(row.astype(np.float64)).sum())
    assert with_logprobs.token_id == 7
    assert with_logprobs.logprob == pytest.approx(-normalizer, abs=1e-12)
    assert with_logprobs.top == ((3, pytest.approx(2 - normalizer)), (4, pytest.approx(1 - normalizer)))
    assert (without.logprob, without.top) == (None, ())


def drawn(row: NDArray[np.float32], **params: Any) -> Choice:
    """What is chosen, with the 20 likeliest of those that it was drawn from."""
    wanted = SamplingParams(logprobs=20, post_sampling_probs=True, seed=3, **params)
    return make_sampler().sample(row[None], [open_row(wanted)])[0]


def test_what_a_token_was_drawn_from_is_reported_behind_all_stages() -> None:
    row = row_of({3: 2, 4: 1, 5: 0.5, 6: -3})
    choice = drawn(row, top_k=3, temperature=2.0, top_p=1.0, logit_bias={5: 1.0})
    weights = {3: np.exp(1.0), 5: np.exp(0.75), 4: np.exp(0.5)}
    expected = {token_id: np.log(weight / sum(weights.values())) for token_id, weight in weights.items()}
    assert dict(choice.top) == pytest.approx(expected)
    assert [token_id for token_id, _ in choice.top] == [3, 5, 4]
    assert choice.token_id is not None
    assert choice.logprob == pytest.approx(expected[choice.token_id])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "logit_bias": {7: 9.0}},
        {"top_k": 1},
        {"allowed_token_ids": [4]},
        {"temperature": 1e-8},
    ],
)
def test_a_token_without_a_rival_was_drawn_from_itself(params: dict[str, Any]) -> None:
    choice = drawn(row_of({3: 2, 4: 1}), **params)
    assert choice.token_id is not None
    assert (choice.logprob, choice.top) == (0.0, ((choice.token_id, 0.0),))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "logit_bias": {3: 2.0}},
        {"mirostat": 2},
        {"temperature": 1.3, "min_p": 0.01},
        {"repetition_penalty": 1.2, "dry_multiplier": 1.0},
    ],
)
def test_a_report_of_what_was_drawn_from_changes_no_choice(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(5).standard_normal((12, VOCAB)).astype(np.float32)
    for_all = make_sampler()

    def answer(**more: Any) -> list[Choice]:
        complete = SamplingParams(**params, **more).filled_from(BUILT_IN)
        state = for_all.open(complete, (5,), 11)
        return [for_all.sample(row[None].copy(), [state])[0] for row in logits]

    reported = answer(logprobs=VOCAB, post_sampling_probs=True)
    assert [choice.token_id for choice in reported] == [choice.token_id for choice in answer()]
    for choice in reported:
        assert sum(np.exp(logprob) for _, logprob in choice.top) == pytest.approx(1)
        assert (choice.token_id, choice.logprob) in choice.top


def test_logprobs_zero_reports_the_chosen_token_only() -> None:
    sampler, state = make_sampler(), open_row(SamplingParams(temperature=0, logprobs=0))
    choice = sampler.sample(row_of({3: 50})[None], [state])[0]
    assert choice.logprob == pytest.approx(0, abs=1e-12)
    assert choice.top == ()
