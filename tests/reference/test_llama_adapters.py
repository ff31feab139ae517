"""LoRA adapters on libllama: each does to the logits what merging it into the weights does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.core.batch import AdapterSet, Batch, Chunk, Truncate
from stoker.errors import AdapterInvalid
from tests.adapter_files import random_pairs, write_adapter, write_merged
from tests.reference.llama_runs import Rows
from tests.tiny_models import TinyModel, write_tiny_model

PROMPT = tuple(range(40, 72))
OPTIONS = LlamaOptions(context_size=256, kv_tokens=512, num_slots=4, max_batch_tokens=128)
TOLERANCE = 2e-3
"""Of the mean difference of logits, relative to their spread: libllama multiplies with rounded activations."""


def rows_of(backend: LlamaBackend, prompt: tuple[int, ...] = PROMPT, adapters: AdapterSet = (), slot: int = 0) -> Rows:
    backend.forward(Batch(1, (), (Truncate(slot, 0),)))
    return backend.forward(Batch(2, (Chunk(slot, 0, prompt, len(prompt), adapters),))).copy()


def difference(ours: Rows, theirs: Rows) -> float:
    return float(np.abs(ours - theirs).mean() / theirs.std())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinyModel())


@pytest.fixture
def backend(tiny: Path) -> Iterator[LlamaBackend]:
    with LlamaBackend(tiny, OPTIONS) as backend:
        yield backend


def merged_rows(tiny: Path, path: Path, *changes: tuple[dict[str, Any], float]) -> Rows:
    with LlamaBackend(write_merged(path, tiny, *changes), OPTIONS) as merged:
        return rows_of(merged)


@pytest.mark.parametrize(("alpha", "scale"), [(8.0, 1.0), (4.0, 0.5), (None, 1.0), (16.0, -1.0)])
def test_an_adapter_does_what_merging_it_does(
    backend: LlamaBackend, tiny: Path, tmp_path: Path, alpha: float | None, scale: float
) -> None:
    pairs = random_pairs(tiny, 1, rank=4)
    backend.load_adapter("a", write_adapter(tmp_path / "a.gguf", pairs, alpha=alpha))
    factor = scale * (1.0 if alpha is None else alpha / 4)
    expected = merged_rows(tiny, tmp_path / "merged.gguf", (pairs, factor))
    plain = rows_of(backend)
    adapted = rows_of(backend, adapters=(("a", scale),))
    assert difference(adapted, expected) < TOLERANCE
    assert difference(plain, expected) > 50 * TOLERANCE, "an adapter without effect would prove nothing"
    assert np.array_equal(rows_of(backend), plain), "it holds for what names it only"


def test_another_scale_of_the_same_adapter_is_another_set(backend: LlamaBackend, tiny: Path, tmp_path: Path) -> None:
    backend.load_adapter("a", write_adapter(tmp_path / "a.gguf", random_pairs(tiny, 1)))
    half = rows_of(backend, adapters=(("a", 0.5),))
    whole = rows_of(backend, adapters=(("a", 1.0),))
    assert difference(half, whole) > 50 * TOLERANCE
    assert np.array_equal(rows_of(backend, adapters=(("a", 0.5),)), half)


def test_several_adapters_add_up(backend: LlamaBackend, tiny: Path, tmp_path: Path) -> None:
    """Loaded behind the context, and more of them than a graph without adapters has room for."""
    pairs = [random_pairs(tiny, seed, rank=2 + seed) for seed in range(6)]
    for seed, own in enumerate(pairs):
        backend.load_adapter(f"a{seed}", write_adapter(tmp_path / f"a{seed}.gguf", own, alpha=2.0 + seed))
    scales = [0.2 * (seed + 1) for seed in range(6)]
    adapted = rows_of(backend, adapters=tuple((f"a{seed}", scale) for seed, scale in enumerate(scales)))
    expected = merged_rows(tiny, tmp_path / "merged.gguf", *zip(pairs, scales, strict=True))
    assert difference(adapted, expected) < TOLERANCE


def test_kv_of_one_adapter_stays_its_own(backend: LlamaBackend, tiny: Path, tmp_path: Path) -> None:
    """Two slots, two adapters, in turn: the rows are those of each alone."""
    sets: list[AdapterSet] = [(("a0", 1.0),), (("a1", 1.0),)]
    for seed in range(2):
        path = write_adapter(tmp_path / f"a{seed}.gguf", random_pairs(tiny, seed))
        backend.load_adapter(f"a{seed}", path)
    alone = [rows_of(backend, adapters=adapters, slot=slot) for slot, adapters in enumerate(sets)]
    for slot in range(2):
        backend.forward(Batch(1, (), (Truncate(slot, 0),)))
    for position, entry in enumerate(PROMPT):
        for slot, adapters in enumerate(sets):
            row = backend.forward(Batch(3, (Chunk(slot, position, (entry,), 1, adapters),)))[0]
            assert difference(row, alone[slot][position]) < TOLERANCE


def test_an_adapter_leaves_and_comes_back(backend: LlamaBackend, tiny: Path, tmp_path: Path) -> None:
    first = write_adapter(tmp_path / "a.gguf", random_pairs(tiny, 1))
    other = write_adapter(tmp_path / "b.gguf", random_pairs(tiny, 2))
    plain = rows_of(backend)
    backend.load_adapter("k", first)
    adapted = rows_of(backend, adapters=(("k", 1.0),))
    backend.unload_adapter("k")
    assert np.array_equal(rows_of(backend), plain)
    backend.load_adapter("k", other)
    assert difference(rows_of(backend, adapters=(("k", 1.0),)), adapted) > 0.05
    backend.unload_adapter("k")
    backend.load_adapter("k", first)
    assert np.array_equal(rows_of(backend, adapters=(("k", 1.0),)), adapted)


def test_the_embedding_can_be_adapted_too(tiny: Path, tmp_path: Path) -> None:
    """A is looked up there, and both matrices lie the other way round in the file."""
    rng = np.random.default_rng(3)
    a = rng.normal(0, 0.3, (TinyModel().vocab_size, 4)).astype(np.float32)
    b = rng.normal(0, 1, (64, 4)).astype(np.float32)
    path = write_adapter(tmp_path / "a.gguf", {"token_embd.weight": (a, b)}, alpha=None)
    # W is (vocabulary, hidden), and so is A·Bᵀ.
    expected = merged_rows(tiny, tmp_path / "merged.gguf", ({"token_embd.weight": (b.T.copy(), a)}, 1.0))
    with LlamaBackend(tiny, OPTIONS) as backend:
        backend.load_adapter("a", path)
        assert difference(rows_of(backend, adapters=(("a", 1.0),)), expected) < TOLERANCE


def test_libllama_itself_refuses_what_is_no_adapter(backend: LlamaBackend, tiny: Path) -> None:
    with pytest.raises(AdapterInvalid, match=r"tiny\.gguf"):
        backend.load_adapter("a", tiny)
    assert rows_of(backend).shape[0] == len(PROMPT)


@pytest.mark.slow
def test_an_adapter_on_real_weights(smollm2_path: Path, tmp_path: Path) -> None:
    """Quantised weights, of which the merged file has those that change as F32."""
    matrices = ("blk.12.attn_v", "blk.20.ffn_down", "blk.27.attn_output")
    pairs = random_pairs(smollm2_path, 5, rank=8, size=1.5, matrices=matrices)
    prompt = tuple(range(1000, 1024))
    with LlamaBackend(smollm2_path, OPTIONS) as backend:
        plain = rows_of(backend, prompt)
        backend.load_adapter("a", write_adapter(tmp_path / "a.gguf", pairs, alpha=8.0))
        adapted = rows_of(backend, prompt, (("a", 1.0),))
        unchanged = rows_of(backend, prompt, (("a", 0.0),))
    with LlamaBackend(write_merged(tmp_path / "merged.gguf", smollm2_path, (pairs, 1.0)), OPTIONS) as merged:
        expected = rows_of(merged, prompt)
    assert np.array_equal(plain, unchanged)
    # A few matrices in F32 alone make a part of the difference.
    assert difference(adapted, expected) < 0.2 * difference(plain, expected)
