"""A row's choice depends on its own logits, parameters, seed and history, to the bit, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.core.samplers import STAGES
from stoker.sampling.sampler import Choice, Sampler
from tests.brief import examples

NUM_STEPS = 4

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    dynatemp_range=st.sampled_from([None, 0.4]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([0.3, 0.9, 0.9999, 1.0]),
    min_p=st.sampled_from([None, 0.05]),
    typical_p=st.sampled_from([None, 0.7]),
    top_n_sigma=st.sampled_from([None, 1.5]),
    xtc_probability=st.sampled_from([None, 0.5]),
    xtc_threshold=st.sampled_from([None, 0.02]),
    infill=st.sampled_from([None, None, True]),
    dry_multiplier=st.sampled_from([None, 0.8]),
    dry_allowed_length=st.sampled_from([1, 2]),
    repetition_penalty=st.sampled_from([None, 1.3]),
    frequency_penalty=st.sampled_from([None, 0.5]),
    penalty_last_n=st.sampled_from([None, -1, 3]),
    mirostat=st.sampled_from([None, None, None, 1, 2]),
    adaptive_target=st.sampled_from([None, 0.3]),
    min_keep=st.sampled_from([None, 2, 7]),
    samplers=st.none() | st.lists(st.sampled_from(STAGES), max_size=12),
    logit_bias=st.sampled_from([None, {3: 2.0, 5: -inf}]),
    allowed_token_ids=st.sampled_from([None, None, range(2, 30)]),
    min_tokens=st.sampled_from([None, 2]),
    ignore_eos=st.sampled_from([None, True]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@dataclass(frozen=True)
class Job:
    params: SamplingParams
    prompt: tuple[int, ...]
    seed: int
    logits: np.ndarray


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    # Odd widths put the rows of a batch at addresses of every alignment.
    vocab_size = draw(st.sampled_from([31, 257, 5003]))
    return [draw(_job(vocab_size)) for _ in range(draw(st.integers(2, 5)))]


@st.composite
def _job(draw: st.DrawFn, vocab_size: int) -> Job:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = (rng.standard_normal((NUM_STEPS, vocab_size)) * draw(st.sampled_from([0.5, 3.0]))).astype(np.float32)
    flaw = draw(st.sampled_from([None, None, None, nan, inf]))
    if flaw is not None:
        logits[draw(st.integers(0, NUM_STEPS - 1)), rng.integers(vocab_size)] = flaw
    prompt = tuple(rng.integers(0, 31, draw(st.integers(1, 40))).tolist())
    return Job(draw(PARAMS), prompt, draw(st.sampled_from([0, 1, 2**64 - 1])), logits)


def run(batch: list[Job]) -> list[list[Choice]]:
    """The choices of each job if all of them are rows of one batch at every step."""
    vocab_size = batch[0].logits.shape[1]
    sampler = Sampler(vocab_size=vocab_size, eog_token_ids=frozenset({2, 4}), token_bytes=lambda i: b" %d" % i)
    states = [sampler.open(job.params.filled_from(BUILT_IN), job.prompt, job.seed) for job in batch]
    steps = [sampler.sample(np.stack([job.logits[step] for job in batch]), states) for step in range(NUM_STEPS)]
    return [list(choices) for choices in zip(*steps, strict=True)]


@settings(deadline=None, max_examples=examples(60))
@given(batch=jobs(), data=st.data())
def test_batch_mates_and_their_order_change_nothing(batch: list[Job], data: st.DataObject) -> None:
    alone = [run([job])[0] for job in batch]
    assert run(batch) == alone
    order = data.draw(st.permutations(range(len(batch))))
    assert run([batch[i] for i in order]) == [alone[i] for i in order]


@settings(deadline=None, max_examples=examples(40))
@given(batch=jobs(), pauses=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=30, max_size=30))
def test_a_row_that_is_left_out_of_some_steps_gives_the_same_answer_later(
    batch: list[Job], pauses: list[list[bool]]
) -> None:
    expected = [run([job])[0] for job in batch]
    vocab_size = batch[0].logits.shape[1]
    sampler = Sampler(vocab_size=vocab_size, eog_token_ids=frozenset({2, 4}), token_bytes=lambda i: b" %d" % i)
    states = [sampler.open(job.params.filled_from(BUILT_IN), job.prompt, job.seed) for job in batch]
    found: list[list[Choice]] = [[] for _ in batch]
    for runs in [*pauses, *[[True] * 5] * NUM_STEPS]:
        rows = [i for i in range(len(batch)) if runs[i] and len(found[i]) < NUM_STEPS]
        logits = np.array([batch[i].logits[len(found[i])] for i in rows], dtype=np.float32).reshape(-1, vocab_size)
        for i, choice in zip(rows, sampler.sample(logits, [states[i] for i in rows]), strict=True):
            found[i].append(choice)
    assert found == expected


@settings(deadline=None, max_examples=examples(60))
@given(jobs())
def test_a_choice_is_possible_and_allowed(batch: list[Job]) -> None:
    for job, choices in zip(batch, run(batch), strict=True):
        for step, choice in enumerate(choices):
            row = job.logits[step]
            if choice.token_id is None:
                assert not np.isfinite(row.max())
                continue
            assert np.isfinite(row[choice.token_id])
            assert choice.token_id not in _banned(job.params, choices, step)
            if job.params.allowed_token_ids is not None:
                assert choice.token_id in job.params.allowed_token_ids
            assert (choice.logprob is None) == (job.params.logprobs is None)
            assert len(choice.top) == (job.params.logprobs or 0)


def _banned(params: SamplingParams, choices: list[Choice], step: int) -> set[int]:
    num_completion = sum(choice.token_id is not None for choice in choices[:step])
    ends = {2, 4} if params.ignore_eos or num_completion < (params.min_tokens or 0) else set[int]()
    return ends | {i for i, bias in (params.logit_bias or {}).items() if bias == -inf}
