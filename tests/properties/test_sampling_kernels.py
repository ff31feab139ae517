"""Compiled code chooses what numpy chooses: the same tokens and log-probabilities, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stoker import _native
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.core.samplers import STAGES
from stoker.sampling.candidates import largest_positions
from stoker.sampling.exponential import exp, exp_sum
from stoker.sampling.penalties import Penalties, TokenCounts
from stoker.sampling.sampler import Choice, Sampler
from tests.brief import examples
from tests.unit.native.tiny import maxima_of

KERNELS = _native.kernel_names()
VOCAB_SIZES = [2, 63, 64, 65, 1000, 5003]

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-3, 0.7, 1.0, 2.5, 100.0]),
    dynatemp_range=st.sampled_from([None, None, 0.4]),
    top_k=st.sampled_from([0, 1, 2, 40, 40, 999, 5000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.9999, 1.0]),
    min_p=st.sampled_from([None, 0.05, 1.0]),
    typical_p=st.sampled_from([None, None, 0.7]),
    mirostat=st.sampled_from([None, None, None, None, 1, 2]),
    min_keep=st.sampled_from([None, None, 0, 1, 2]),
    samplers=st.none() | st.lists(st.sampled_from([name for name in STAGES if name != "infill"]), max_size=12),
    repetition_penalty=st.sampled_from([None, 1.3, 0.7]),
    presence_penalty=st.sampled_from([None, None, 0.3, -1.0]),
    frequency_penalty=st.sampled_from([None, None, 0.7, -1.0]),
    penalty_last_n=st.sampled_from([0, 2, 3, -1]),
    logit_bias=st.sampled_from([None, {0: 2.0, 1: -inf}, {1: -inf}, {0: 1e38, 1: -1e38}]),
    dry_multiplier=st.sampled_from([None, None, None, 2.0]),
    allowed_token_ids=st.sampled_from([None, None, [0, 1]]),
    min_tokens=st.sampled_from([None, 2]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@st.composite
def logits_of(draw: st.DrawFn, vocab_size: int) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.standard_normal((draw(st.integers(1, 4)), vocab_size)) * draw(st.sampled_from([1e-3, 2.0, 1e4]))
    if draw(st.booleans()):
        rows = np.round(rows)  # many ties, and zeros of both signs
    rows = rows.astype(np.float32)
    for flaw in draw(st.lists(st.sampled_from([nan, -nan, inf, -inf, 3e38, -3e38, -0.0]), max_size=3)):
        rows[draw(st.integers(0, len(rows) - 1)), rng.integers(vocab_size)] = flaw
    if draw(st.integers(0, 9)) == 0:
        rows[0] = -inf
    elif draw(st.integers(0, 4)) == 0:
        rows[0, rng.permutation(vocab_size)[1:]] = -inf
    return rows


def leaves_a_token(params: SamplingParams, vocab_size: int) -> bool:
    """Token 0 is an end; who leaves none is refused."""
    banned = {token_id for token_id, bias in (params.logit_bias or {}).items() if bias == -inf}
    if params.min_tokens:
        banned.add(0)
    return not banned.issuperset(params.allowed_token_ids or range(vocab_size))


class Fixed:
    """A constraint that always allows the same tokens."""

    error = None
    is_complete = False
    can_end = True

    def __init__(self, words: NDArray[np.uint32] | None, forced: int | None = None) -> None:
        self.words = words
        self.forced_id = forced

    def mask(self) -> NDArray[np.uint32] | None:
        return self.words

    def allows(self, token_id: int) -> bool:
        words = self.words
        return words is None or (token_id < 32 * len(words) and bool(words[token_id // 32] >> token_id % 32 & 1))

    def push(self, token_id: int) -> None:
        assert self.forced_id in (None, token_id)
        assert self.forced_id is not None or self.allows(token_id)

    def forced(self) -> int | None:
        return self.forced_id

    def forced_text(self) -> list[int]:
        return []

    def validate(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)


@st.composite
def constraints(draw: st.DrawFn, vocab_size: int) -> Fixed | None:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([None, None, 0.0, 0.01, 0.5, 1.0]))
    if share is None:
        return None
    num_words = draw(st.sampled_from([1, (vocab_size + 31) // 32]))  # tokens after the last word are forbidden
    bits = rng.random(32 * num_words) < share
    bits[vocab_size:] = False
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    return Fixed(words, draw(st.sampled_from([None, None, None, 0, vocab_size - 1])))


@st.composite
def guided_jobs(draw: st.DrawFn) -> tuple[np.ndarray, list[SamplingParams], int, list[Fixed | None]]:
    logits, params, seed = draw(jobs())
    return logits, params, seed, [draw(constraints(logits.shape[1])) for _ in params]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[np.ndarray, list[SamplingParams], int]:
    logits = draw(logits_of(draw(st.sampled_from(VOCAB_SIZES))))
    usable = PARAMS.filter(lambda params: leaves_a_token(params, logits.shape[1]))
    return logits, [draw(usable) for _ in logits], draw(st.sampled_from([0, 7, 2**64 - 1]))


def choices(
    logits: np.ndarray,
    params: list[SamplingParams],
    seed: int,
    kernels: _native.RowSampler | None,
    maxima: np.ndarray | None = None,
    guides: Sequence[Fixed | None] = (),
) -> list[list[Choice]]:
    """Of three steps that all see the same rows."""
    vocab_size = logits.shape[1]
    sampler = Sampler(vocab_size=vocab_size, eog_token_ids=frozenset({0}), token_bytes=lambda _: b"", kernels=kernels)
    states = [
        sampler.open(p.filled_from(BUILT_IN), (1, 1, 0, 1), seed, guide)
        for p, guide in zip_longest(params, guides)
        if p is not None
    ]
    answers = [sampler.sample(logits, states, maxima) for _ in range(3)]
    assert [state.num_completion for state in states] == [
        sum(answer[i].token_id is not None for answer in answers) for i in range(len(states))
    ]
    return answers


@pytest.mark.parametrize("name", KERNELS)
@settings(deadline=None, max_examples=examples(40))
@given(job=jobs())
def test_choices_are_those_of_numpy(name: str, job: tuple[np.ndarray, list[SamplingParams], int]) -> None:
    before = job[0].tobytes()
    assert choices(*job, _native.RowSampler(name)) == choices(*job, None)
    maxima = maxima_of(job[0])
    assert choices(*job, _native.RowSampler(name), maxima) == choices(*job, None)
    np.testing.assert_array_equal(maxima, maxima_of(job[0]))
    assert job[0].tobytes() == before


@pytest.mark.parametrize("name", KERNELS)
@settings(deadline=None, max_examples=examples(40))
@given(guided=guided_jobs())
def test_choices_of_constrained_rows_are_those_of_numpy(name: str, guided: Any) -> None:
    logits, params, seed, guides = guided
    before = logits.tobytes()
    expected = choices(logits, params, seed, None, guides=guides)
    assert choices(logits, params, seed, _native.RowSampler(name), guides=guides) == expected
    assert choices(logits, params, seed, _native.RowSampler(name), maxima_of(logits), guides) == expected
    assert logits.tobytes() == before


@pytest.mark.parametrize("name", KERNELS)
@settings(deadline=None, max_examples=examples(25))
@given(data=st.data(), count=st.sampled_from([1, 2, 40, 1000]))
def test_sums_and_ranks_are_those_of_numpy(name: str, data: st.DataObject, count: int) -> None:
    row = data.draw(logits_of(data.draw(st.sampled_from(VOCAB_SIZES))))[0]
    kernels = _native.RowSampler(name)
    peak = float(row.max())
    count = min(count, row.size)
    if np.isfinite(peak):
        assert kernels.exp_sum(row, peak) == exp_sum(row, peak)
        expected = [i for i in largest_positions(row, count).tolist() if row[i] > -inf]
        assert kernels.largest(row, count) == expected
        assert kernels.largest(row, count, maxima_of(row[np.newaxis])[0]) == expected
    else:
        assert kernels.largest(row, count) == []


def test_a_wide_row_is_chosen_from_as_a_narrow_one() -> None:
    """262,144 logits: the interpreter is released meanwhile, and many blocks hold candidates."""
    logits = np.sort(np.random.default_rng(0).standard_normal((5, 2**18)), axis=1).astype(np.float32)
    logits[1] = logits[1, ::-1]
    params = [SamplingParams(temperature=t, top_k=1000, logprobs=5) for t in (0.0, 0.2, 1.0, 3.0, 1.0)]
    assert choices(logits, params, 3, _native.RowSampler()) == choices(logits, params, 3, None)


def test_exp_is_right_within_2_units_in_the_last_place() -> None:
    x = -np.concatenate(([0.0, 1e-300, 708.0], np.random.default_rng(0).exponential(30, 10_000))).clip(0, 708)
    exact = np.exp(x.astype(np.longdouble))
    assert np.abs((exp(x) - exact) / np.spacing(exact.astype(np.float64))).max() < 2
    assert exp(np.array([-708.1, -inf])).tolist() == [0.0, 0.0]


def open_row(
    vocab_size: int, chain: tuple[float, int, float, float] = (0.0, 1, 1.0, inf), seed: int = 0, **edits: Any
) -> _native.CompiledRow:
    nothing: dict[str, Any] = {"biases": [], "ends": [], "min_tokens": 0, "penalties": None, "history": []}
    return _native.RowSampler.open(vocab_size, chain, seed, **(nothing | edits))


@pytest.mark.parametrize(
    "chain",
    [
        (-1.0, 1, 1.0, inf),
        (nan, 1, 1.0, inf),
        (1.0, 0, 1.0, inf),
        (1.0, -1, 0.5, inf),
        (1.0, 8, 1.0, inf),
        (1.0, 2, nan, inf),
        (1.0, 2, 1.0, -1.0),
    ],
)
def test_a_chain_that_cannot_be_is_refused(chain: tuple[float, int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"out of range|no number"):
        open_row(8, chain)


@pytest.mark.parametrize("edits", [{"biases": [(8, 1.0)]}, {"ends": [-1]}, {"history": [3, 8]}])
def test_token_ids_outside_of_the_vocabulary_are_refused(edits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no such token id"):
        open_row(8, **edits)


@given(
    prompt=st.lists(st.integers(0, 9), max_size=30),
    window=st.integers(0, 12),
    numbers=st.tuples(*[st.sampled_from([0.5, 1.0, 1.7])] * 3),
    seed=st.integers(0, 2**32),
)
def test_penalties_follow_the_history_as_numpy_s_do(
    prompt: list[int], window: int, numbers: tuple[float, float, float], seed: int
) -> None:
    """Twenty tokens of a small vocabulary: they enter the window, are counted and leave it again."""
    rng = np.random.default_rng(seed)
    counts = TokenCounts(window or None, prompt)
    edit = Penalties(counts, repetition=numbers[0], presence=numbers[1], frequency=numbers[2])
    row = open_row(10, penalties=(window, *numbers), history=prompt)
    for _ in range(20):
        logits = rng.standard_normal((1, 10)).astype(np.float32)
        edited = logits[0].copy()
        if not edit.is_idle:
            edit.apply(edited)
        assert _native.RowSampler().choose(logits, [row]) == [edited.argmax()]
        edit.push(int(edited.argmax()))


@pytest.mark.parametrize("has_maxima", [False, True])
def test_nothing_of_one_mask_is_left_for_the_next(has_maxima: bool) -> None:
    """Blocks of 64 tokens that a mask allows as a whole, in part, or not at all, in any order of masks."""
    rng = np.random.default_rng(1)
    sampler, n = _native.RowSampler(), 200
    for _ in range(200):
        shares = rng.choice([0.0, 0.02, 0.5, 1.0], size=4)
        allowed = rng.random(256) < np.repeat(shares, 64)
        allowed[n:] = False
        logits = rng.standard_normal((1, n)).astype(np.float32)
        masked = np.where(allowed[:n], logits, -inf).astype(np.float32)
        words = np.packbits(allowed, bitorder="little").view(np.uint32)
        maxima = maxima_of(logits) if has_maxima else None
        row = open_row(n, biases=[(0, 1.0), (n - 1, 1.0)])
        masked[0, [0, n - 1]] += 1
        found = sampler.choose(logits, [row], maxima, [words])
        assert found == [int(masked.argmax()) if allowed.any() else -1]


@pytest.mark.parametrize("top_k", [0, 1, 2, 40, 700])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.0003, 0.02, 0.7])
def test_a_mask_allows_what_a_row_without_the_others_has(top_k: int, temperature: float, share: float) -> None:
    """Of 20,000 tokens in which neighbors are alike, so that blocks differ, and the likely ones are often forbidden."""
    rng, n, sampler = np.random.default_rng(2), 20_000, _native.RowSampler()
    chain = (temperature, top_k, 0.9, 9.0)
    for _ in range(30):
        heights = 3 * rng.standard_normal(n // 50).repeat(50).astype(np.float32)
        logits = heights[np.newaxis] + rng.standard_normal((1, n)).astype(np.float32)
        logits = logits.round(int(rng.choice([0, 6])))  # with equal ones
        allowed = rng.random(n) < share
        if rng.random() < 0.5:
            allowed &= heights < 0
        masked = np.where(allowed, logits, -inf).astype(np.float32)
        words = np.packbits(allowed, bitorder="little").view(np.uint32)
        for maxima in (None, maxima_of(logits)):
            expected = sampler.choose(masked, [open_row(n, chain)])
            assert sampler.choose(logits, [open_row(n, chain)], maxima, [words]) == expected


class Asked(Fixed):
    """Counts what it is asked."""

    num_asked = 0
    num_masks = 0

    def mask(self) -> NDArray[np.uint32] | None:
        self.num_masks += 1
        return super().mask()

    def allows(self, token_id: int) -> bool:
        self.num_asked += 1
        return super().allows(token_id)


@pytest.mark.parametrize("chain", [(0.0, 1), (0.7, 1), (0.7, 3), (0.7, 40), (2.0, 40), (1.0, 120), (0.7, 0)])
def test_a_choice_by_asking_is_the_choice_by_a_mask(chain: tuple[float, int]) -> None:
    """With top-p and min-p, each alone, together, and neither; the mask is not always needed."""
    rng, n, sampler = np.random.default_rng(3), 20_000, _native.RowSampler()
    num_masks = 0
    for _ in range(400):
        top_p, distance = rng.choice([0.0, 0.3, 0.95, 1.0] if chain[1] else [0.3, 0.95]), rng.choice([0.5, 3.0, inf])
        height = rng.choice([0.5, 3, 8])
        logits = np.round(height * rng.standard_normal((1, n)), int(rng.choice([0, 6]))).astype(np.float32)
        if rng.random() < 0.1:
            logits[0, rng.permutation(n)[int(rng.integers(0, 12)) :]] = -inf  # few tokens are possible
        allowed = rng.random(n) < rng.choice([0.0003, 0.5, 0.98, 1.0])
        words = np.packbits(allowed, bitorder="little").view(np.uint32)
        asked = Asked(None if allowed.all() and rng.random() < 0.5 else words)
        settings, seed = (*chain, float(top_p), float(distance)), int(rng.integers(0, 2**60))
        maxima = maxima_of(logits) if rng.random() < 0.5 else None
        before = logits.copy()
        found = sampler.choose(logits, [open_row(n, settings, seed, biases=[(5, 2.0)])], maxima, [asked])
        assert found == sampler.choose(logits, [open_row(n, settings, seed, biases=[(5, 2.0)])], maxima, [words])
        assert np.array_equal(logits, before)
        assert asked.num_asked <= 16
        assert asked.num_masks <= 1
        num_masks += asked.num_masks
    assert num_masks > 0
    assert num_masks < 350 or not 0 < chain[1] < 100  # with others the whole row counts, or a large part of it


def test_an_error_while_a_row_is_asked_about_leaves_the_row_as_it_was() -> None:
    class Failing(Fixed):
        def allows(self, token_id: int) -> bool:
            raise KeyError(token_id)

    logits = np.arange(0, 4, 0.02, dtype=np.float32)[np.newaxis]
    before, maxima = logits.copy(), maxima_of(logits)
    row = open_row(200, (0.7, 1, 0.9, inf), biases=[(3, 9.0)])
    with pytest.raises(KeyError):
        _native.RowSampler().choose(logits, [row], maxima, [Failing(None)])
    assert np.array_equal(logits, before)
    assert np.array_equal(maxima, maxima_of(before))
    assert row.num_completion == 0


def test_each_row_must_be_compiled_for_it() -> None:
    rows, one = np.zeros((2, 65), dtype=np.float32), open_row(65)
    with pytest.raises(ValueError, match="needs to be compiled"):
        _native.RowSampler().choose(rows, [None])
    with pytest.raises(ValueError, match="another vocabulary"):
        _native.RowSampler().choose(rows, [one, open_row(64)])
    for shape in ((1, 2), (2, 1), (2, 65)):
        with pytest.raises(ValueError, match="not those of the logits"):
            _native.RowSampler().choose(rows, [one, one], np.zeros(shape, dtype=np.float32))
    with pytest.raises(ValueError, match="a mask or none"):
        _native.RowSampler().choose(rows, [one, one], None, [None])


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("params", [SamplingParams(min_tokens=2), SamplingParams(repetition_penalty=1.5)])
def test_an_edit_does_not_hide_that_a_row_is_unusable(bad: float, params: SamplingParams) -> None:
    logits = np.zeros((1, 70), dtype=np.float32)
    logits[0, 3] = bad
    for kernels in (None, _native.RowSampler()):
        sampler = Sampler(vocab_size=70, eog_token_ids=frozenset({3}), token_bytes=lambda _: b"", kernels=kernels)
        state = sampler.open(params.filled_from(BUILT_IN), (3,), 0)
        assert sampler.sample(logits, [state]) == [Choice(token_id=None)]


def test_guesses_are_the_choices_of_later_tokens_and_change_nothing() -> None:
    logits = np.random.default_rng(4).normal(0, 2, (3, 1000)).astype(np.float32)
    before, kernels = logits.copy(), _native.RowSampler()
    sampler = Sampler(vocab_size=1000, eog_token_ids=frozenset({0}), token_bytes=lambda _: b"", kernels=kernels)
    plain = SamplingParams(temperature=1.5, top_k=100, logit_bias={7: 9.0})
    states = [
        sampler.open(params.filled_from(BUILT_IN), (1,), 11, None)
        for params in (plain, SamplingParams(temperature=0), SamplingParams(temperature=1, mirostat=2))
    ]
    guesses = [sampler.guess(logits, states, [ahead] * 3) for ahead in range(4)]
    assert (logits == before).all()
    chosen = [[choice.token_id for choice in sampler.sample(logits, states)] for _ in range(4)]
    assert [row[:2] for row in guesses] == [row[:2] for row in chosen]
    assert len({row[0] for row in guesses}) > 1, "each has a random number of its own"
    assert {row[2] for row in guesses} == {logits[2].argmax()}, "numpy chooses for it, so nothing is drawn"
    assert sampler.guess(logits[:, :500], states, [0] * 3) == logits[:, :500].argmax(axis=1).tolist()


def test_guesses_need_rows_of_the_same_vocabulary() -> None:
    rows = np.zeros((2, 64), dtype=np.float32)
    with pytest.raises(ValueError, match="each row of logits needs to be compiled"):
        _native.RowSampler().guess(rows, [None, None], [0])
    with pytest.raises(ValueError, match="another vocabulary"):
        _native.RowSampler().guess(rows, [None, open_row(65)], [0, 0])
