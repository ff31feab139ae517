"""The sampling chain against libllama's own samplers: the same candidates, the same probabilities within 1e-5."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.llama.native import library
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.candidates import Candidates
from stoker.sampling.draws import Draws
from stoker.sampling.pickers import AdaptiveP, compile_mirostat
from stoker.sampling.sampler import RowState, Sampler

llama_cpp = library()

VOCAB = 3000
OFF = SamplingParams(temperature=1, top_k=0, top_p=1).filled_from(BUILT_IN)


@contextmanager
def native_chain(*samplers: object) -> Generator[object]:
    """Takes ownership of `samplers`."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    try:
        yield chain
    finally:
        llama_cpp.llama_sampler_free(chain)


def apply_native(chain: object, row: np.ndarray) -> dict[int, float]:
    """Token id -> probability of what libllama leaves of the row."""
    cells = (llama_cpp.llama_token_data * row.size)()
    array = np.ctypeslib.as_array(cells)
    array["id"], array["logit"], array["p"] = np.arange(row.size), row, 0
    data = llama_cpp.llama_token_data_array(
        data=ctypes.cast(cells, ctypes.POINTER(llama_cpp.llama_token_data)), size=row.size, selected=-1, sorted=False
    )
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(data))
    left = np.ctypeslib.as_array(data.data, shape=(data.size,))
    weights = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    return positive(left["id"], weights / weights.sum())


def positive(token_ids: np.ndarray, probabilities: np.ndarray) -> dict[int, float]:
    pairs = zip(token_ids.tolist(), probabilities.tolist(), strict=True)
    return {token_id: p for token_id, p in pairs if p > 0}


def apply_ours(state: RowState, row: np.ndarray) -> dict[int, float]:
    edited = row.copy()
    for edit in state.edits:
        edit.apply(edited)
    candidates = Candidates(np.arange(row.size), edited)
    for transform in state.transforms:
        candidates = transform(candidates, Draws(state.seed, state.num_completion))
    weights = candidates.weights()
    return positive(candidates.token_ids, weights / weights.sum())


def random_rows(count: int = 8) -> list[np.ndarray]:
    rng = np.random.default_rng(11)
    rows = [(rng.standard_normal(VOCAB) * rng.uniform(1, 4)).astype(np.float32) for _ in range(count)]
    for row in rows:
        row[rng.integers(0, VOCAB, 20)] += rng.uniform(2, 9, 20).astype(np.float32)
    return rows


def open_row(params: SamplingParams, prompt: Sequence[int] = (1, 2, 3), vocab_size: int = VOCAB) -> RowState:
    sampler = Sampler(vocab_size=vocab_size, eog_token_ids=frozenset({2}), token_bytes=lambda i: b"<%d>" % i)
    return sampler.open(params.filled_from(OFF), prompt, seed=3)


def assert_same(ours: dict[int, float], native: dict[int, float]) -> None:
    # What is impossible in float32 may still be barely possible in float64.
    assert {i for i, p in ours.items() if p > 1e-30} == {i for i, p in native.items() if p > 1e-30}
    assert max(abs(ours.get(i, 0.0) - p) for i, p in native.items()) < 1e-5


def test_logit_bias() -> None:
    biases = {5: 3.0, 17: -inf, 2999: -1.5}
    cells = (llama_cpp.llama_logit_bias * 3)(*[llama_cpp.llama_logit_bias(i, b) for i, b in biases.items()])
    with native_chain(llama_cpp.llama_sampler_init_logit_bias(VOCAB, 3, cells)) as chain:
        for row in random_rows():
            assert_same(apply_ours(open_row(SamplingParams(logit_bias=biases)), row), apply_native(chain, row))


@pytest.mark.parametrize("last_n", [3, 64, 500])
def test_penalties(last_n: int) -> None:
    history = np.random.default_rng(3).integers(0, VOCAB, 300).tolist() + [7] * 5
    params = SamplingParams(penalty_last_n=last_n, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.15)
    state = open_row(params, history[:200])
    with native_chain(llama_cpp.llama_sampler_init_penalties(VOCAB, last_n, 1.2, 0.15, 0.3)) as chain:
        for token_id in history:
            llama_cpp.llama_sampler_accept(chain, token_id)
        for token_id in history[200:]:
            state.push(token_id)
        for row in random_rows():
            row[7] = 12
            assert_same(apply_ours(state, row), apply_native(chain, row))


@pytest.mark.parametrize("allowed_length", [0, 1, 3])
@pytest.mark.parametrize("last_n", [20, 400])
def test_dry_without_breakers(last_n: int, allowed_length: int) -> None:
    rng = np.random.default_rng(last_n)
    block = rng.integers(0, 30, 12).tolist()
    params = SamplingParams(
        dry_multiplier=0.7,
        dry_base=1.4,
        dry_allowed_length=allowed_length,
        dry_penalty_last_n=last_n,
        dry_sequence_breakers=(),
    )
    state = open_row(params, [1])
    native = llama_cpp.llama_sampler_init_dry(None, 0.7, 1.4, allowed_length, last_n, None, 0)
    with native_chain(native) as chain:
        llama_cpp.llama_sampler_accept(chain, 1)
        for step, row in enumerate(random_rows(40)):
            for token_id in [*block[: 3 + step % 9], int(rng.integers(0, 30))]:
                state.push(token_id)
                llama_cpp.llama_sampler_accept(chain, token_id)
            row[:30] += 8
            assert_same(apply_ours(state, row), apply_native(chain, row))


@pytest.fixture(scope="module")
def vocab(smollm2_path: Path) -> Iterator[object]:
    """A real one."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(smollm2_path).encode(), params)
    assert model
    yield llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("sigma", [0.0, 0.7, 2.0])
@pytest.mark.parametrize("bans", [(), range(400, 49_000)])
def test_infill_on_a_real_vocabulary(vocab: object, sigma: float, bans: Sequence[int]) -> None:
    vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
    ends = frozenset(i for i in range(vocab_size) if llama_cpp.llama_vocab_is_eog(vocab, i))
    sampler = Sampler(vocab_size=vocab_size, eog_token_ids=ends, token_bytes=lambda i: piece(vocab, i))
    near = [i for text in (" the", " there", "re", "    return") for i in tokenize(vocab, text)]
    # Tokens of which some begin with others, beside some of anything.
    alike = [i for i in range(300, 3000) if piece(vocab, i).startswith((b" th", b" re", b"co"))][:60]
    params = SamplingParams(infill=True, top_k=40, top_n_sigma=sigma, logit_bias=dict.fromkeys(bans, -inf))
    state = sampler.open(params.filled_from(OFF), (1,), seed=0)
    cells = (llama_cpp.llama_logit_bias * len(bans))(*[llama_cpp.llama_logit_bias(i, -inf) for i in bans])
    native = (
        llama_cpp.llama_sampler_init_logit_bias(vocab_size, len(bans), cells),
        llama_cpp.llama_sampler_init_top_n_sigma(sigma),
        llama_cpp.llama_sampler_init_top_k(40),
        llama_cpp.llama_sampler_init_infill(vocab),
    )
    rng = np.random.default_rng(7)
    sizes: set[int] = set()
    with native_chain(*native) as chain:
        for spread in np.linspace(0.3, 4, 60):
            row = rng.standard_normal(vocab_size).astype(np.float32)
            row[[*near, *alike]] = 8 + spread * rng.standard_normal(len(near) + len(alike))
            row[sorted(ends)] = 8 - rng.uniform(0, 12, len(ends))
            ours, theirs = apply_ours(state, row), apply_native(chain, row)
            if not ends.issuperset(theirs):
                assert_same(ours, theirs)
            assert ends.issuperset(ours) == ends.issuperset(theirs), "which of its ends comes is up to each"
            sizes.add(len(ours.keys() - ends))
    assert {0, 1} <= sizes


@pytest.mark.slow
def test_dry_with_breakers_on_a_real_vocabulary(vocab: object) -> None:
    breakers = ["\n", ":", '"', "*", "user said"]
    text = (
        'The user said: "the cat sat on the mat", and the cat sat on the mat.\nThe user said that the cat sat on the '
        "hat.\n* the cat sat on the mat and\n* the cat sat on the mat: the user said the cat sat on the mat and the cat"
    )
    token_ids = tokenize(vocab, text)
    vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
    sampler = Sampler(
        vocab_size=vocab_size, eog_token_ids=frozenset(), token_bytes=lambda token_id: piece(vocab, token_id)
    )
    given = SamplingParams(dry_multiplier=0.8, dry_allowed_length=1, dry_sequence_breakers=breakers)
    state = sampler.open(given.filled_from(OFF), token_ids[:10], seed=0)
    strings = (ctypes.c_char_p * len(breakers))(*[b.encode() for b in breakers])
    row = np.random.default_rng(0).standard_normal(vocab_size).astype(np.float32)
    row[token_ids] += 9
    num_penalised = 0
    with native_chain(llama_cpp.llama_sampler_init_dry(vocab, 0.8, 1.75, 1, 1000, strings, len(breakers))) as chain:
        for position, token_id in enumerate(token_ids):
            llama_cpp.llama_sampler_accept(chain, token_id)
            if position >= 10:
                state.push(token_id)
                assert_same(apply_ours(state, row), apply_native(chain, row))
                num_penalised += not state.edits[0].is_idle
    assert 10 < num_penalised < len(token_ids) - 10


def tokenize(vocab: object, text: str) -> list[int]:
    room = (llama_cpp.llama_token * 512)()
    count = llama_cpp.llama_tokenize(vocab, text.encode(), len(text.encode()), room, 512, False, False)
    return list(room[:count])


def piece(vocab: object, token_id: int) -> bytes:
    room = ctypes.create_string_buffer(256)
    length = llama_cpp.llama_token_to_piece(vocab, token_id, room, 256, 0, True)
    return room.raw[:length]


TRANSFORMS: list[tuple[SamplingParams, Callable[[], object]]] = [
    (SamplingParams(top_n_sigma=1.1), lambda: llama_cpp.llama_sampler_init_top_n_sigma(1.1)),
    (SamplingParams(top_k=40), lambda: llama_cpp.llama_sampler_init_top_k(40)),
    (SamplingParams(top_k=1), lambda: llama_cpp.llama_sampler_init_top_k(1)),
    (SamplingParams(top_k=700), lambda: llama_cpp.llama_sampler_init_top_k(700)),
    (SamplingParams(typical_p=0.6), lambda: llama_cpp.llama_sampler_init_typical(0.6, 0)),
    (SamplingParams(top_p=0.85), lambda: llama_cpp.llama_sampler_init_top_p(0.85, 0)),
    (SamplingParams(top_p=0.99), lambda: llama_cpp.llama_sampler_init_top_p(0.99, 0)),
    (SamplingParams(top_p=0.0), lambda: llama_cpp.llama_sampler_init_top_p(0.0, 0)),
    (SamplingParams(min_p=0.07), lambda: llama_cpp.llama_sampler_init_min_p(0.07, 0)),
    (
        SamplingParams(xtc_probability=1.0, xtc_threshold=0.03),
        lambda: llama_cpp.llama_sampler_init_xtc(1.0, 0.03, 0, 1),
    ),
    (SamplingParams(temperature=0.6), lambda: llama_cpp.llama_sampler_init_temp(0.6)),
    (
        SamplingParams(temperature=0.8, dynatemp_range=0.5, dynatemp_exponent=1.3),
        lambda: llama_cpp.llama_sampler_init_temp_ext(0.8, 0.5, 1.3),
    ),
]


@pytest.mark.parametrize(("params", "native"), TRANSFORMS)
def test_one_transform(params: SamplingParams, native: Callable[[], object]) -> None:
    with native_chain(native()) as chain:
        for row in random_rows():
            assert_same(apply_ours(open_row(params), row), apply_native(chain, row))


def test_whole_chain_in_the_order_of_llama_server() -> None:
    history = np.random.default_rng(5).integers(0, 40, 200).tolist()
    params = SamplingParams(
        logit_bias={3: 4.0},
        repetition_penalty=1.15,
        presence_penalty=0.2,
        dry_multiplier=0.5,
        dry_penalty_last_n=100,
        dry_sequence_breakers=(),
        top_n_sigma=4.0,
        top_k=60,
        typical_p=0.97,
        top_p=0.95,
        min_p=0.01,
        xtc_probability=1.0,
        xtc_threshold=0.2,
        temperature=0.9,
        dynatemp_range=0.3,
    )
    bias = (llama_cpp.llama_logit_bias * 1)(llama_cpp.llama_logit_bias(3, 4.0))
    samplers = (
        llama_cpp.llama_sampler_init_logit_bias(VOCAB, 1, bias),
        llama_cpp.llama_sampler_init_penalties(VOCAB, 64, 1.15, 0.0, 0.2),
        llama_cpp.llama_sampler_init_dry(None, 0.5, 1.75, 2, 100, None, 0),
        llama_cpp.llama_sampler_init_top_n_sigma(4.0),
        llama_cpp.llama_sampler_init_top_k(60),
        llama_cpp.llama_sampler_init_typical(0.97, 0),
        llama_cpp.llama_sampler_init_top_p(0.95, 0),
        llama_cpp.llama_sampler_init_min_p(0.01, 0),
        llama_cpp.llama_sampler_init_xtc(1.0, 0.2, 0, 1),
        llama_cpp.llama_sampler_init_temp_ext(0.9, 0.3, 1.0),
    )
    state = open_row(params, history)
    with native_chain(*samplers) as chain:
        for token_id in history:
            llama_cpp.llama_sampler_accept(chain, token_id)
        for row in random_rows():
            # High enough that top-n-sigma leaves top_k tokens: libllama counts those it drops as candidates, at -inf.
            row[:200] += 9
            assert_same(apply_ours(state, row), apply_native(chain, row))


def picked_natively(chain: object, row: np.ndarray) -> tuple[dict[int, float], int]:
    """What libllama draws from, by token id, and the token that it drew."""
    cells = (llama_cpp.llama_token_data * row.size)()
    array = np.ctypeslib.as_array(cells)
    array["id"], array["logit"] = np.arange(row.size), row
    data = llama_cpp.llama_token_data_array(
        data=ctypes.cast(cells, ctypes.POINTER(llama_cpp.llama_token_data)), size=row.size, selected=-1
    )
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(data))
    chosen = data.data[data.selected].id
    llama_cpp.llama_sampler_accept(chain, chosen)
    found = {data.data[i].id: data.data[i].p for i in range(data.size)}
    return {token_id: p for token_id, p in found.items() if p > 0}, chosen


@pytest.mark.parametrize(
    ("version", "make"),
    [
        (1, lambda: llama_cpp.llama_sampler_init_mirostat(VOCAB, 1, 7.0, 0.1, 100)),
        (2, lambda: llama_cpp.llama_sampler_init_mirostat_v2(1, 7.0, 0.1)),
    ],
)
def test_mirostat_follows_libllama_step_by_step(version: int, make: Callable[[], object]) -> None:
    picker = compile_mirostat(SamplingParams(mirostat=version, mirostat_tau=7.0).filled_from(BUILT_IN), VOCAB)
    assert picker is not None
    sizes = set[int]()
    with native_chain(make()) as chain:
        for row in random_rows(30):
            kept = picker.prepared(Candidates(np.arange(VOCAB), row))
            found, chosen = picked_natively(chain, row)
            assert_same(positive(kept.token_ids, kept.weights() / kept.weights().sum()), found)
            sizes.add(len(kept))
            # Libllama drew a token of its own; our bound moves as if we had drawn the same.
            picker.mu -= 0.1 * (-np.log2(found[chosen]) - 7.0)
    assert len(sizes) > 10


def test_adaptive_p_follows_libllama_step_by_step() -> None:
    picker = AdaptiveP.compile(SamplingParams(adaptive_target=0.3, adaptive_decay=0.8))
    assert picker is not None
    with native_chain(llama_cpp.llama_sampler_init_adaptive_p(0.3, 0.8, 1)) as chain:
        for row in random_rows(40):
            candidates = Candidates(np.arange(VOCAB), row)
            ours = picker.prepared(candidates)
            found, chosen = picked_natively(chain, row)
            shares = ours.weights() / ours.weights().sum()
            assert max(abs(shares - [found.get(i, 0.0) for i in ours.token_ids.tolist()])) < 1e-4
            # Libllama drew a token of its own; our mean moves as if we had drawn the same.
            original = candidates.weights()[chosen] / candidates.weights().sum()
            picker.sum = original + 0.8 * picker.sum
            picker.weight = 1 + 0.8 * picker.weight
