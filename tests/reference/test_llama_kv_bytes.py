"""KV of libllama as bytes: what comes back is what was computed, for whole caches, sliding windows and states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.llama import LlamaBackend
from stoker.backends.llama.tokenizer import LlamaTokenizer
from stoker.cache.directory import BlockDirectory, KeptModel
from stoker.cache.store import KVStore
from stoker.core.batch import Chunk, Truncate
from stoker.core.blocks import BLOCK_ENTRIES
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Failed, Output, Submit, Usage
from stoker.engine.question_messages import EraseSlots
from stoker.errors import BackendError
from tests.harness import loaded
from tests.recurrent_models import EOS, write_jamba, write_mamba
from tests.reference.llama_runs import Rows, assert_same, compute, difference, open_backend, step

NUM_ROWS = 8
LONG = 620
"""More than gemma3's window of 512."""


@pytest.fixture(scope="module")
def dense(smollm2_path: Path) -> Iterator[LlamaBackend]:
    with open_backend(smollm2_path, kv_tokens=1024) as backend:
        yield backend


@pytest.fixture(scope="module")
def windowed(gemma3_path: Path) -> Iterator[LlamaBackend]:
    with open_backend(gemma3_path, kv_tokens=1280) as backend:
        yield backend


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in ("dense", "windowed"):
        if name in request.fixturenames:
            backend: LlamaBackend = request.getfixturevalue(name)
            step(backend, ops=[Truncate(slot, 0) for slot in range(backend.info.num_slots)])


def tokens_of(backend: LlamaBackend, length: int) -> list[int]:
    text = " ".join(f"Ship {n} left port {n % 7} with {n * 3} chests of tea." for n in range(length // 8))
    return backend.tokenizer.encode(text)[:length]


def move(backend: LlamaBackend, source: int, target: int, length: int, size: int = BLOCK_ENTRIES) -> None:
    """Portion by portion; the target is filled while the source is gone."""
    starts = range(0, length, size)
    states = [backend.export_kv(source, start, min(start + size, length)) for start in starts]
    step(backend, ops=[Truncate(source, 0)])
    for start, state in zip(starts, states, strict=True):
        backend.import_kv(target, start, min(start + size, length), state)


def rows_behind(backend: LlamaBackend, slot: int, token_ids: list[int], length: int) -> Rows:
    return step(backend, Chunk(slot, length, tuple(token_ids[length : length + NUM_ROWS]), NUM_ROWS))


def test_ranges_come_back_as_they_were(dense: LlamaBackend) -> None:
    token_ids = tokens_of(dense, 200)
    compute(dense, 0, token_ids[:160])
    expected = rows_behind(dense, 0, token_ids, 160)
    step(dense, ops=[Truncate(0, 160)])
    move(dense, 0, 3, 160)
    assert np.array_equal(rows_behind(dense, 3, token_ids, 160), expected)


def test_exporting_changes_nothing(dense: LlamaBackend) -> None:
    token_ids = tokens_of(dense, 120)
    compute(dense, 0, token_ids[:96])
    expected = rows_behind(dense, 0, token_ids, 96)
    step(dense, ops=[Truncate(0, 96)])
    assert dense.export_kv(0, 32, 64) == dense.export_kv(0, 32, 64)
    assert np.array_equal(rows_behind(dense, 0, token_ids, 96), expected)


@pytest.mark.slow
@pytest.mark.parametrize("size", [BLOCK_ENTRIES, LONG])
def test_a_sliding_window_can_be_restored_and_then_cut_back(windowed: LlamaBackend, size: int) -> None:
    """Also where one portion is longer than the window; and cells outside it are not given to others."""
    token_ids = tokens_of(windowed, LONG + NUM_ROWS)
    compute(windowed, 0, token_ids[:50])
    fresh = rows_behind(windowed, 0, token_ids, 50)
    step(windowed, ops=[Truncate(0, 50)])
    compute(windowed, 0, token_ids[50:LONG], start=50)
    expected = rows_behind(windowed, 0, token_ids, LONG)
    step(windowed, ops=[Truncate(0, LONG)])
    move(windowed, 0, 5, LONG, size)
    assert np.array_equal(rows_behind(windowed, 5, token_ids, LONG), expected)
    compute(windowed, 0, token_ids[200:400])
    step(windowed, ops=[Truncate(5, 50)])
    assert_same(rows_behind(windowed, 5, token_ids, 50), fresh)


def test_bytes_that_do_not_fit_are_refused_and_leave_the_slot_as_it_was(dense: LlamaBackend) -> None:
    token_ids = tokens_of(dense, 120)
    compute(dense, 0, token_ids[:96])
    expected = rows_behind(dense, 0, token_ids, 96)
    step(dense, ops=[Truncate(0, 96)])
    state = bytes(dense.export_kv(0, 32, 64))
    compute(dense, 1, token_ids[:32])
    for bad in (b"", state[:4], state[:-100], state[:8] + b"?" * 500, bytes(dense.export_kv(0, 64, 96))):
        with pytest.raises(BackendError):
            dense.import_kv(1, 32, 64, bad)
    dense.import_kv(1, 32, 64, state)
    dense.import_kv(1, 64, 96, dense.export_kv(0, 64, 96))
    assert_same(rows_behind(dense, 1, token_ids, 96), expected)


def test_a_pool_without_room_refuses(smollm2_path: Path) -> None:
    with open_backend(smollm2_path, kv_tokens=256) as small:
        compute(small, 0, tokens_of(small, 64))
        state = small.export_kv(0, 0, 64)
        for slot, length in ((1, 50), (2, 40), (3, 60)):
            compute(small, slot, [5, 6, 7, 8, 9] * (length // 5))
        with pytest.raises(BackendError):
            small.import_kv(4, 0, 64, state)
        step(small, ops=[Truncate(1, 30), Truncate(3, 40)])
        small.import_kv(4, 0, 64, state)


@pytest.mark.parametrize("write", [write_mamba, write_jamba])
def test_states_of_recurrent_and_hybrid_models_come_back(write: Callable[[Path], Path], tmp_path: Path) -> None:
    with open_backend(write(tmp_path / "model.gguf")) as backend:
        token_ids = [index * 7 % 250 for index in range(200)]
        compute(backend, 0, token_ids[:150])
        state = backend.export_kv(0, 0, 150)
        expected = rows_behind(backend, 0, token_ids, 150)
        backend.import_kv(1, 0, 150, state)
        assert difference(rows_behind(backend, 1, token_ids, 150), expected) < 1e-4
        with pytest.raises(BackendError):
            backend.import_kv(2, 0, 150, bytes(state)[:-20])
        backend.import_kv(2, 0, 150, state)
        assert difference(rows_behind(backend, 2, token_ids, 150), expected) < 1e-4


def test_a_hybrid_gives_blocks_without_a_state_and_states_without_what_is_before(tmp_path: Path) -> None:
    """So several states of one prompt hold its keys and values once."""
    with open_backend(write_jamba(tmp_path / "model.gguf")) as backend:
        assert backend.info.traits.exports_apart
        token_ids = [index * 7 % 250 for index in range(200)]
        compute(backend, 0, token_ids[:150])
        whole = backend.export_kv(0, 0, 150)
        blocks = [bytes(backend.export_kv(0, start, start + 32, has_state=False)) for start in range(0, 128, 32)]
        state = backend.export_kv(0, 128, 150)
        assert len({len(block) for block in blocks}) == 1
        assert 4 * len(blocks[0]) + len(state) < 1.01 * len(whole)
        expected = rows_behind(backend, 0, token_ids, 150)
        with pytest.raises(BackendError):
            backend.import_kv(1, 0, 32, blocks[1], has_state=False)
        with pytest.raises(BackendError):
            backend.import_kv(1, 0, 32, blocks[0][:-20], has_state=False)
        for index, block in enumerate(blocks):
            backend.import_kv(1, 32 * index, 32 * index + 32, block, has_state=False)
        backend.import_kv(1, 128, 150, state)
        assert difference(rows_behind(backend, 1, token_ids, 150), expected) < 1e-4
        step(backend, ops=[Truncate(1, 0)])
        backend.import_kv(1, 0, 32, blocks[0], has_state=False)
        step(backend, ops=[Truncate(1, 0)])
        compute(backend, 1, token_ids[:150])
        assert difference(rows_behind(backend, 1, token_ids, 150), expected) < 1e-4


class Served:
    """An engine with one slot for a request, and what it says."""

    def __init__(self, path: Path, *, num_slots: int = 2, kv_tokens: int = 1024, store: KVStore | None = None) -> None:
        backend = open_backend(path, num_slots=num_slots, kv_tokens=kv_tokens)
        self.tokenizer: LlamaTokenizer = backend.tokenizer
        config = SchedulerConfig(max_running=1)
        port = None if store is None else backend
        # To this clock nothing takes time. On a real one restoring may look dearer than computing with a tiny model.
        self.engine = Engine(
            loaded(backend, backend.tokenizer, kv_port=port), config, kv_store=store, clock=lambda: 0.0
        )
        self.num_asked = 0

    def ask(self, prompt: list[int]) -> tuple[list[int], Usage]:
        self.num_asked += 1
        sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        self.engine.add(self.engine.admit(Submit(f"r{self.num_asked}", prompt, sampling)))
        outputs: list[Output] = []
        while self.engine.has_work:
            for event in self.engine.step():
                assert not isinstance(event, Failed), event
                assert isinstance(event, Output)
                outputs.append(event)
        return [token for output in outputs for token in output.token_ids], outputs[-1].usage

    def close(self) -> None:
        self.engine.close()


@pytest.mark.parametrize("write", [write_mamba, write_jamba])
def test_conversations_with_a_model_that_cannot_be_cut_go_on_as_if_cold(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    """S2-16 … S2-21. More conversations than slots, through memory and disk, against an engine without any cache."""
    path = write(tmp_path / "model.gguf")
    system = [*[index * 3 % 250 for index in range(120)], EOS]
    store = KVStore(10**7)
    store.open_disk(BlockDirectory(tmp_path), identify=lambda: b"1" * 32, model=KeptModel("m", "f"), limit_bytes=10**8)
    warm, cold = Served(path, store=store), Served(path)
    histories = [[*system, *([index] * 40), EOS] for index in range(4)]
    cached = list[int]()
    for _ in range(3):
        for index, history in enumerate(histories):
            answer, usage = warm.ask([*history, 1, 2, 3])
            cold.engine.answer(EraseSlots(None))
            assert cold.ask([*history, 1, 2, 3])[0] == answer
            cached.append(usage.cached_tokens)
            histories[index] = [*history, 1, 2, 3, *answer, EOS]
    assert cached[0] == 0
    assert cached[1:4] == [120, 120, 120], "the system prompt, up to the end of its message"
    assert min(cached[4:]) >= 150, "their own last turn"
    warm.close()
    cold.close()


@pytest.mark.slow
def test_conversations_with_a_sliding_window_go_on_as_if_cold(gemma3_path: Path) -> None:
    warm = Served(gemma3_path, kv_tokens=768, store=KVStore(10**9))
    cold = Served(gemma3_path, kv_tokens=768)
    base = [warm.tokenizer.bos_token_id or 0, *warm.tokenizer.encode("One ship left port, two ships came back. " * 70)]
    prompts = [[*base[:LONG], *warm.tokenizer.encode(f" The {word} was")] for word in ("captain", "anchor")]
    other = [*prompts[0][:1], *reversed(prompts[0][1:300])]
    for prompt in (prompts[0], other):
        warm.ask(prompt)
    answer, usage = warm.ask(prompts[1])
    assert usage.cached_tokens >= LONG - BLOCK_ENTRIES
    assert answer == cold.ask(prompts[1])[0]
    warm.close()
    cold.close()
