"""The forward pass on real weights: the same tokens give the same logits however they are cut, placed and mixed."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.base import Backend
from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.backends.llama.native import library
from stoker.core.batch import Batch, CacheOp, Chunk, CopyPrefix, Truncate
from stoker.errors import BackendError, ConfigError, ModelNotLoaded, ResourceExhausted
from tests.reference.libllama_reference import LibllamaReference
from tests.reference.llama_runs import MEAN_TOLERANCE, Rows, assert_same, compute, difference, open_backend, step

pytestmark = pytest.mark.slow

TEXT = (
    "The old lighthouse keeper climbed the spiral stairs every evening, carrying a lamp, a book and a tin of biscuits. "
    "He had done so for thirty-one years, through storms and calm, and he could not imagine any other life. "
    "One night, however, a ship that nobody had announced came slowly out of the fog, with no light on board at all."
)


@pytest.fixture(scope="module")
def shared(smollm2_path: Path) -> Iterator[LlamaBackend]:
    with open_backend(smollm2_path) as backend:
        yield backend


@pytest.fixture
def backend(shared: LlamaBackend) -> Iterator[LlamaBackend]:
    yield shared
    step(shared, ops=[Truncate(slot, 0) for slot in range(shared.info.num_slots)])


@pytest.fixture(scope="module")
def token_ids(shared: LlamaBackend) -> list[int]:
    return shared.tokenizer.encode(TEXT)


def test_satisfies_the_protocol(backend: Backend) -> None:
    info = backend.info
    assert (info.architecture, info.vocab_size, info.trained_context) == ("llama", 49152, 8192)
    assert (info.context_size, info.kv_tokens, info.num_slots, info.max_batch_tokens) == (2048, 4096, 8, 512)
    assert info.traits.can_truncate
    assert info.traits.can_copy
    assert info.traits.shares_cells
    assert info.eog_token_ids == {0, 2, 4}


def test_greedy_answer_equals_libllama_alone(backend: LlamaBackend, smollm2_path: Path) -> None:
    reference = LibllamaReference(smollm2_path)
    expected = reference.answer("The capital of France is", 16)
    reference.close()
    pending, start = backend.tokenizer.encode("The capital of France is"), 0
    for token_id, row in zip(expected.token_ids, expected.logits, strict=True):
        ours = step(backend, Chunk(0, start, tuple(pending), 1))
        assert difference(ours[0], row) < MEAN_TOLERANCE
        start, pending = start + len(pending), [token_id]
    assert expected.text.startswith(" Paris")


@pytest.mark.parametrize("sizes", [[1], [7], [3, 40, 1, 9]])
def test_any_cut_gives_the_same_rows(backend: LlamaBackend, token_ids: list[int], sizes: list[int]) -> None:
    assert_same(compute(backend, 1, token_ids, sizes=sizes), compute(backend, 0, token_ids))


def test_ragged_batches_equal_sequential_runs(backend: LlamaBackend, token_ids: list[int]) -> None:
    prompts = [token_ids[first : first + 40] for first in (0, 5, 11, 20)]
    expected = [compute(backend, slot, prompt) for slot, prompt in enumerate(prompts)]
    at, rows = [0, 0, 0, 0], [list[Rows]() for _ in prompts]
    rng = random.Random(1)
    while any(position < 40 for position in at):
        chunks: list[Chunk] = []
        for index in rng.sample(range(4), rng.randint(1, 4)):
            size = min(rng.choice([1, 1, 2, 15]), 40 - at[index])
            if size:
                chunks.append(Chunk(index + 4, at[index], tuple(prompts[index][at[index] : at[index] + size]), size))
        if not chunks:
            continue
        result = step(backend, *chunks)
        for chunk in chunks:
            size = len(chunk.entries)
            rows[chunk.slot - 4].append(result[:size])
            at[chunk.slot - 4] += size
            result = result[size:]
    for parts, row in zip(rows, expected, strict=True):
        assert_same(np.concatenate(parts), row)


def test_rows_are_in_chunk_order_when_a_batch_spans_several_parts(smollm2_path: Path, token_ids: list[int]) -> None:
    with open_backend(smollm2_path, max_ubatch_tokens=16) as backend:
        expected = compute(backend, 0, token_ids[:50], sizes=[16])
        lengths = {5: 50, 2: 9, 7: 33, 1: 1}
        chunks = [Chunk(slot, 0, tuple(token_ids[:n]), min(n, 3)) for slot, n in lengths.items()]
        rows = step(backend, *chunks)
    wanted = [expected[n - min(n, 3) : n] for n in lengths.values()]
    assert_same(rows, np.concatenate(wanted))


def test_the_same_steps_give_the_same_bits(backend: LlamaBackend, token_ids: list[int]) -> None:
    first = compute(backend, 0, token_ids, sizes=[20, 1])
    step(backend, ops=[Truncate(0, 0)])
    np.testing.assert_array_equal(compute(backend, 0, token_ids, sizes=[20, 1]), first)


def test_copied_prefix_equals_fresh_computation(backend: LlamaBackend, token_ids: list[int]) -> None:
    fresh = compute(backend, 0, token_ids, sizes=[30, 512])
    tail = tuple(token_ids[30:])
    copied = step(backend, Chunk(3, 30, tail, len(tail)), ops=[CopyPrefix(source=0, target=3, length=30)])
    assert_same(copied, fresh[30:])


def test_a_copy_lives_on_when_its_source_is_emptied(backend: LlamaBackend, token_ids: list[int]) -> None:
    fresh = compute(backend, 0, token_ids, sizes=[30, 512])
    step(backend, ops=[CopyPrefix(source=0, target=3, length=30), Truncate(0, 0)])
    compute(backend, 0, token_ids[40:], sizes=[512])
    assert_same(compute(backend, 3, token_ids[30:], start=30), fresh[30:])


def test_truncated_slot_equals_fresh_computation(backend: LlamaBackend, token_ids: list[int]) -> None:
    compute(backend, 0, [*token_ids[:25], *token_ids[:40]])
    rows = step(backend, Chunk(0, 25, tuple(token_ids[25:60]), 35), ops=[Truncate(slot=0, length=25)])
    assert_same(rows, compute(backend, 1, token_ids[:60], sizes=[25, 35])[25:])


def test_operations_are_applied_in_their_order(backend: LlamaBackend, token_ids: list[int]) -> None:
    compute(backend, 0, token_ids[:20])
    compute(backend, 1, token_ids[20:50])
    ops: list[CacheOp] = [Truncate(1, 0), CopyPrefix(0, 1, 20), Truncate(0, 0), CopyPrefix(1, 0, 10)]
    step(backend, ops=ops)
    rows = step(backend, Chunk(0, 10, tuple(token_ids[10:20]), 10), Chunk(1, 20, tuple(token_ids[20:30]), 10))
    assert_same(rows, compute(backend, 2, token_ids[:30])[10:])


def test_no_rows_are_an_empty_array(backend: LlamaBackend, token_ids: list[int]) -> None:
    assert step(backend, Chunk(0, 0, tuple(token_ids[:5]), 0)).shape == (0, 49152)
    assert step(backend).shape == (0, 49152)


def test_the_caller_may_write_to_the_rows(backend: LlamaBackend, token_ids: list[int]) -> None:
    rows = backend.forward(Batch(0, (Chunk(0, 0, tuple(token_ids[:5]), 2),)))
    assert rows.dtype == np.float32
    rows[:] = 0
    assert step(backend, Chunk(0, 5, (token_ids[5],), 1)).any()


def test_shared_cells_are_counted_once(smollm2_path: Path, token_ids: list[int]) -> None:
    with open_backend(smollm2_path, kv_tokens=256, max_batch_tokens=64) as backend:
        compute(backend, 0, (token_ids * 4)[:200])
        step(backend, *[], ops=[CopyPrefix(0, slot, 200) for slot in range(1, 8)])
        rows = step(backend, *[Chunk(slot, 200, (5,) * 7, 1) for slot in range(8)])
        assert len(rows) == 8, "1600 positions are seen in a pool of 256 cells"
        for row in rows[1:]:
            assert_same(row, rows[0])


def test_a_full_pool_is_an_error_and_leaves_the_slots_as_they_were(smollm2_path: Path, token_ids: list[int]) -> None:
    with open_backend(smollm2_path, kv_tokens=256, max_batch_tokens=128) as backend:
        compute(backend, 0, (token_ids * 4)[:250])
        expected = compute(backend, 0, [7], start=250)
        with pytest.raises(BackendError, match="no free KV cells") as failure:
            step(backend, Chunk(1, 0, tuple(token_ids[:30]), 1))
        assert failure.value.fields["native_code"] == 1
        assert_same(step(backend, Chunk(0, 250, (7,), 1), ops=[Truncate(0, 250)]), expected)
        assert step(backend, Chunk(1, 0, (5, 6), 1)).shape == (1, 49152)


def test_a_hole_in_a_slot_is_refused(backend: LlamaBackend, token_ids: list[int]) -> None:
    compute(backend, 0, token_ids[:10])
    with pytest.raises(BackendError, match="consecutive"):
        step(backend, Chunk(0, 12, (5,), 1))
    assert step(backend, Chunk(0, 10, (5,), 1)).shape == (1, 49152)


def test_a_pass_that_fails_half_way_leaves_the_slots_as_they_were(
    backend: LlamaBackend, token_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(backend, 0, token_ids[:10])
    real_decode = library().llama_decode
    with monkeypatch.context() as patch:
        patch.setattr(library(), "llama_decode", lambda *arguments: real_decode(*arguments) or -3)
        with pytest.raises(BackendError) as failure:
            step(backend, Chunk(0, 10, (5, 6), 1), Chunk(1, 0, (7, 8), 1))
    assert failure.value.fields["native_code"] == -3
    assert step(backend, Chunk(0, 10, (5,), 1), Chunk(1, 0, (7,), 1)).shape == (2, 49152)


def test_other_threads_run_during_a_forward_pass(
    backend: LlamaBackend, token_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, ran = threading.Event(), threading.Event()
    ran_during_decode: list[bool] = []
    real_decode = library().llama_decode

    def run() -> None:
        go.wait(60)
        ran.set()

    def decode(*arguments: object) -> int:
        go.set()
        assert not ran.is_set()
        code = real_decode(*arguments)
        ran_during_decode.append(ran.is_set())
        return code

    thread = threading.Thread(target=run)
    thread.start()
    interval = sys.getswitchinterval()
    monkeypatch.setattr(library(), "llama_decode", decode)
    sys.setswitchinterval(1000)  # from here on this thread gives the GIL away only when it releases it itself
    try:
        step(backend, Chunk(0, 0, tuple(token_ids), 1))
    finally:
        sys.setswitchinterval(interval)
        go.set()
        thread.join(60)
    assert ran_during_decode == [True]


def test_a_closed_backend_says_so(smollm2_path: Path) -> None:
    backend = open_backend(smollm2_path)
    backend.close()
    backend.close()
    with pytest.raises(ModelNotLoaded):
        step(backend, Chunk(0, 0, (1,), 1))
    with pytest.raises(ModelNotLoaded):
        backend.tokenizer.encode("text")


@pytest.mark.parametrize("kv_tokens", [2**23, 2**31 - 1, 2**40])
def test_a_context_that_cannot_fit_is_refused(smollm2_path: Path, kv_tokens: int) -> None:
    with pytest.raises(ResourceExhausted, match="--kv-tokens"):
        open_backend(smollm2_path, kv_tokens=kv_tokens)


def test_more_slots_than_libllama_has_are_lowered(smollm2_path: Path) -> None:
    with open_backend(smollm2_path, num_slots=1000, kv_tokens=300, max_batch_tokens=8) as backend:
        assert backend.info.num_slots == 255  # one sequence is where KV is taken apart
        assert backend.info.max_batch_tokens == 8
        assert step(backend, Chunk(254, 0, (5, 6), 1)).shape == (1, 49152)


@pytest.mark.parametrize(
    ("name", "value"), [("context_size", 0), ("kv_tokens", -1), ("num_slots", 0), ("threads", 0), ("threads", 513)]
)
def test_options_are_checked(name: str, value: int) -> None:
    with pytest.raises(ConfigError) as failure:
        replace(LlamaOptions(context_size=10, kv_tokens=10), **{name: value})  # pyright: ignore[reportArgumentType]
    assert failure.value.fields["parameter"] == name
