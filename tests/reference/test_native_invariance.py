"""The logits of a sequence are the same to the bit, whatever else is computed, cached, or chosen: compared with ==."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import _native
from stoker.backends.native import NativeBackend
from stoker.core.batch import Chunk, CopyPrefix, Truncate
from stoker.errors import BackendError, ConfigError, ModelNotLoaded
from tests.reference.native_runs import Rows, all_rows, open_native, step
from tests.tiny_models import TinyModel, write_tiny_model

LENGTH = 600
"""More than a span of attention."""
SHAPE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "num_heads": 4, "head_size": 64}
MODELS = {
    "llama Q4_K": TinyModel(type="Q4_K", head_type="Q6_K", **SHAPE),
    "qwen2 Q4_1": TinyModel(architecture="qwen2", type="Q4_1", **SHAPE),
    "gemma3 Q8_0": TinyModel(
        architecture="gemma3", type="Q8_0", num_layers=2, keys={"attention.sliding_window": 40}, has_head=False
    ),
    "phi3 F16": TinyModel(architecture="phi3", type="F16"),
    "gemma2 Q4_0": TinyModel(architecture="gemma2", type="Q4_0", has_head=False),
    "gemma4 Q8_0": TinyModel(
        architecture="gemma4", type="Q8_0", num_layers=4, keys={"attention.shared_kv_layers": 2}, has_head=False
    ),
    "llama4 Q8_0": TinyModel(
        architecture="llama4",
        type="Q8_0",
        num_experts=8,
        shared_size=32,
        num_layers=4,
        keys={"attention.sliding_window": 40},
    ),
    "smallthinker Q8_0": TinyModel(
        architecture="smallthinker", type="Q8_0", num_experts=8, keys={"attention.sliding_window": 40}
    ),
    "gemma3n Q8_0": TinyModel(
        architecture="gemma3n", type="Q8_0", num_layers=7, keys={"attention.shared_kv_layers": 2}, has_head=False
    ),
    "deepseek2 Q8_0": TinyModel(architecture="deepseek2", type="Q8_0", num_experts=8, num_dense=1, shared_size=32),
}


@pytest.fixture(scope="module", params=list(MODELS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", MODELS[request.param])


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[NativeBackend]:
    with open_native(path) as backend:
        yield backend


@pytest.fixture
def backend(shared: NativeBackend) -> Iterator[NativeBackend]:
    yield shared
    step(shared, ops=[Truncate(slot, 0) for slot in range(shared.info.num_slots)])
    assert shared.num_used_pages == 0


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return np.random.default_rng(7).integers(0, 256, LENGTH).tolist()


@pytest.fixture(scope="module")
def alone(shared: NativeBackend, token_ids: list[int]) -> Rows:
    rows = all_rows(shared, token_ids)
    step(shared, ops=[Truncate(0, 0)])
    return rows


@pytest.mark.parametrize("sizes", [[1, 2, 3, 5, 17], [64], [31, 1, 32, 33], [511, 1, 88], [7, 300], [16], [4, 12, 13]])
def test_chunks(backend: NativeBackend, token_ids: list[int], alone: Rows, sizes: list[int]) -> None:
    np.testing.assert_array_equal(all_rows(backend, token_ids, slot=3, sizes=sizes), alone)


def test_single_tokens(backend: NativeBackend, token_ids: list[int], alone: Rows) -> None:
    step(backend, Chunk(0, 0, tuple(token_ids[:500])))
    for position in range(500, 530):
        np.testing.assert_array_equal(step(backend, Chunk(0, position, (token_ids[position],), 1))[0], alone[position])


@pytest.mark.parametrize("seed", range(4))
def test_company(backend: NativeBackend, token_ids: list[int], alone: Rows, seed: int) -> None:
    """Random ragged batches: slot 0 computes the prompt, the others anything, in any order of chunks."""
    rng = random.Random(seed)
    lengths = [0] * backend.info.num_slots
    while lengths[0] < LENGTH:
        chunks: list[Chunk] = []
        room = backend.info.max_batch_tokens
        for slot in rng.sample(range(4), 4):
            size = min(rng.choice([1, 1, 2, 9, 40, 150]), room - 4, (LENGTH if slot == 0 else 900) - lengths[slot])
            if size <= 0:
                continue
            entries = token_ids[lengths[0] : lengths[0] + size] if slot == 0 else rng.choices(range(256), k=size)
            chunks.append(Chunk(slot, lengths[slot], tuple(entries), len(entries)))
            room -= size
        rows = step(backend, *chunks)
        at = 0
        for chunk in chunks:
            if chunk.slot == 0:
                np.testing.assert_array_equal(rows[at : at + chunk.num_logits], alone[chunk.start : chunk.end])
            at += chunk.num_logits
            lengths[chunk.slot] = chunk.end


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100, 511, 512, 513])
def test_copies_and_cuts(backend: NativeBackend, token_ids: list[int], alone: Rows, length: int) -> None:
    all_rows(backend, token_ids)
    step(backend, ops=[CopyPrefix(0, 1, length), Truncate(0, length)])
    rest = tuple(token_ids[length : length + 40])
    step(backend, Chunk(0, length, tuple(reversed(rest)), 1))  # the source parts first, and overwrites nothing
    np.testing.assert_array_equal(step(backend, Chunk(1, length, rest, len(rest))), alone[length : length + 40])
    step(backend, ops=[Truncate(0, length)])
    np.testing.assert_array_equal(step(backend, Chunk(0, length, rest, len(rest))), alone[length : length + 40])


def test_pages_of_others_with_infinities_in_them(backend: NativeBackend, token_ids: list[int], alone: Rows) -> None:
    """What a page held before must not shine through, not even times zero."""
    page_bytes = len(backend.export_kv(*filled(backend, 5)))
    step(backend, ops=[Truncate(5, 0)])
    backend.import_kv(5, 0, 20, b"\xff\x7f" * (page_bytes // 2))
    step(backend, ops=[Truncate(5, 0)])
    np.testing.assert_array_equal(all_rows(backend, token_ids[:40], sizes=[3]), alone[:40])


def filled(backend: NativeBackend, slot: int) -> tuple[int, int, int]:
    step(backend, Chunk(slot, 0, tuple(range(20))))
    return slot, 0, 20


@pytest.mark.parametrize(("start", "end"), [(0, 100), (32, 96), (40, 77), (33, 34), (0, 600)])
def test_exported_kv(backend: NativeBackend, token_ids: list[int], alone: Rows, start: int, end: int) -> None:
    all_rows(backend, token_ids)
    state = backend.export_kv(0, start, end)
    step(backend, ops=[Truncate(0, 0)])
    if start:
        step(backend, Chunk(1, 0, tuple(token_ids[:start])))
        step(backend, ops=[CopyPrefix(1, 2, start)])
    backend.import_kv(2, start, end, state)
    if end < LENGTH:
        rest = tuple(token_ids[end : end + 5])
        np.testing.assert_array_equal(step(backend, Chunk(2, end, rest, len(rest))), alone[end : end + 5])
    else:
        step(backend, ops=[Truncate(2, 590)])
        rest = tuple(token_ids[590:])
        np.testing.assert_array_equal(step(backend, Chunk(2, 590, rest, len(rest))), alone[590:])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(path: Path, token_ids: list[int], alone: Rows, threads: int) -> None:
    with open_native(path, threads=threads) as backend:
        np.testing.assert_array_equal(all_rows(backend, token_ids, sizes=[200, 1, 12]), alone)


@pytest.mark.parametrize("name", _native.kernel_names())
def test_kernels(path: Path, token_ids: list[int], alone: Rows, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they would keep keys and values as another type, they are told to keep them as here."""
    with open_native(path) as backend:
        kv_type = backend.info.kv_format.split()[2]
    monkeypatch.setenv("STOKER_NATIVE_KERNELS", name)
    with open_native(path, kv_type=kv_type) as backend:
        assert backend.kernels == name
        count = 60 if name == "scalar" else LENGTH
        np.testing.assert_array_equal(all_rows(backend, token_ids[:count], sizes=[40, 1, 19]), alone[:count])


def test_pool_size_and_batch_size(path: Path, token_ids: list[int], alone: Rows) -> None:
    with open_native(path, kv_tokens=LENGTH, num_slots=1, max_batch_tokens=50, context_size=LENGTH) as backend:
        np.testing.assert_array_equal(all_rows(backend, token_ids), alone)


def test_misuse_is_noticed(backend: NativeBackend) -> None:
    step(backend, Chunk(0, 0, (1, 2, 3), 1))
    with pytest.raises(AssertionError, match="a hole or an overlap"):
        step(backend, Chunk(0, 2, (1,), 1))
    with pytest.raises(AssertionError, match="entries in a batch"):
        step(backend, Chunk(1, 0, (1,) * 513, 1))
    with pytest.raises(BackendError, match="are not the KV"):
        backend.import_kv(2, 0, 5, b"x")
    for token_id in (-1, backend.info.vocab_size, 2**31 - 1):
        with pytest.raises(ValueError, match="token"):
            step(backend, Chunk(1, 0, (5, token_id), 1))
    assert step(backend, Chunk(1, 0, (5,), 1), Chunk(0, 3, (4,), 1)).shape == (2, backend.info.vocab_size)


def test_a_batch_may_be_empty(backend: NativeBackend) -> None:
    assert step(backend).shape == (0, backend.info.vocab_size)


def test_a_closed_backend_says_so(path: Path) -> None:
    backend = open_native(path)
    backend.close()
    backend.close()
    with pytest.raises(ModelNotLoaded):
        step(backend, Chunk(0, 0, (1,), 1))


@pytest.mark.parametrize(
    ("name", "value"), [("context_size", 0), ("kv_tokens", -1), ("threads", 513), ("kv_type", "q3")]
)
def test_options_are_checked(path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as failure:
        open_native(path, **{name: value})
    assert failure.value.fields["parameter"] == name
