"""Attention within chunks (Llama 4) beside float64 and libllama, around their borders; and files that lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from stoker.core.batch import Chunk, CopyPrefix, Truncate
from stoker.errors import ModelFileInvalid, ModelUnsupported, StokerError
from tests.brief import mostly_slow
from tests.reference.native_reference import NativeReference
from tests.reference.native_runs import all_rows, libllama_rows, open_native, relative_error, step
from tests.tiny_models import TinyModel, write_tiny_model

SIZE = 8192
"""Of a chunk, of every published file."""


def chunked(size: int | None, **more: Any) -> TinyModel:
    keys = {"attention.sliding_window": size, **more.pop("keys", {})}
    return TinyModel(architecture="llama4", num_experts=4, shared_size=32, num_layers=4, keys=keys, **more)


@pytest.mark.parametrize("size", mostly_slow([1, 2, 31, 32, 33, 511, 512, 513], [1, 33, 512]))
def test_chunks_end_where_they_should(tmp_path: Path, size: int) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", chunked(size))
    token_ids = np.random.default_rng(2).integers(0, 256, 1100).tolist()
    expected = NativeReference(path).logits(token_ids)
    with open_native(path) as backend:
        assert relative_error(all_rows(backend, token_ids), expected) < 2e-3


@pytest.mark.parametrize("length", [39, 40, 41, 79, 80, 81, 120])
def test_prompts_that_end_at_a_border(tmp_path: Path, length: int) -> None:
    """Each goes on: from the slot itself, from a copy, from exported keys and values, after a draft that is cut off."""
    path = write_tiny_model(tmp_path / "m.gguf", chunked(40, type="Q8_0"))
    token_ids = np.random.default_rng(3).integers(0, 256, length + 50).tolist()
    rest, wrong = tuple(token_ids[length:]), (7,) * 45
    with open_native(path, window_tokens=1200) as backend:
        assert backend.info.windows is not None
        expected = all_rows(backend, token_ids)[length:]
        step(backend, Chunk(1, 0, tuple(token_ids[:length])))
        step(backend, ops=[CopyPrefix(1, 2, length)])
        state = backend.export_kv(1, 0, length)
        backend.import_kv(3, 0, length, state)
        step(backend, Chunk(1, length, wrong))
        step(backend, ops=[Truncate(1, length)])
        for slot in (1, 2, 3):
            np.testing.assert_array_equal(step(backend, Chunk(slot, length, rest, len(rest))), expected)


@pytest.mark.slow
def test_the_chunk_of_published_files_is_libllamas(tmp_path: Path) -> None:
    """Behind its border queries of the layers that see everything have grown, too."""
    few = {"num_heads": 2, "num_kv_heads": 1, "head_size": 32}
    path = write_tiny_model(tmp_path / "m.gguf", chunked(None, context_length=2 * SIZE, **few))
    other = write_tiny_model(tmp_path / "o.gguf", chunked(2 * SIZE, context_length=2 * SIZE, **few))
    token_ids = np.random.default_rng(4).integers(0, 256, SIZE + 60).tolist()
    expected = libllama_rows(path, token_ids)
    errors = list[float]()
    for file in (path, other):
        with open_native(file, context_size=2 * SIZE, kv_tokens=2 * SIZE, num_slots=1) as backend:
            rows = all_rows(backend, token_ids)
        parts = (slice(SIZE - 1), SIZE - 1, slice(SIZE, None))
        errors += [relative_error(rows[part], expected[part]) for part in parts]
    assert max(errors[:5]) < 3e-3, "queries grow one position before the border"
    assert errors[5] > 1e-2, "one chunk more is seen"


def test_experts_are_chosen_before_sigmoids_are_all_but_one(tmp_path: Path) -> None:
    router = np.random.default_rng(5).normal(0, 6, (4, 64)).astype(np.float32)
    model = chunked(None, vectors={f"blk.{index}.ffn_gate_inp.weight": router for index in (1, 3)})
    path = write_tiny_model(tmp_path / "m.gguf", model)
    token_ids = np.random.default_rng(6).integers(0, 256, 80).tolist()
    with open_native(path) as backend:
        assert relative_error(all_rows(backend, token_ids), NativeReference(path).logits(token_ids)) < 2e-3


def test_windows_of_smallthinker_end_where_they_should(tmp_path: Path) -> None:
    model = TinyModel(architecture="smallthinker", num_experts=12, num_layers=5, keys={"attention.sliding_window": 24})
    path = write_tiny_model(tmp_path / "m.gguf", model)
    token_ids = np.random.default_rng(7).integers(0, 256, 80).tolist()
    with open_native(path, kv_type="f32") as backend:
        assert relative_error(all_rows(backend, token_ids), NativeReference(path).logits(token_ids)) < 2e-5


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"interleave_moe_layer_step": 0}, ModelFileInvalid, "interleave_moe_layer_step` is 0"),
        ({"interleave_moe_layer_step": 3}, ModelUnsupported, "it has no tensor for the gates of all experts"),
        ({"attention.sliding_window": 0}, ModelFileInvalid, "sliding_window` is 0"),
        ({"attention.sliding_window": 2**31}, ModelFileInvalid, "sliding_window` is 2147483648"),
        ({"expert_count": 5}, ModelFileInvalid, "has the shape"),
        ({"expert_count": 0}, ModelUnsupported, "it has no experts"),
        ({"expert_used_count": 5}, ModelFileInvalid, "expert_used_count` is 5"),
        ({"expert_feed_forward_length": 64}, ModelFileInvalid, "has the shape"),
    ],
)
def test_files_that_lie_are_errors(
    tmp_path: Path, keys: dict[str, int], error: type[StokerError], message: str
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", chunked(16))
    with open_native(path):
        pass
    tell(path, keys)
    with pytest.raises(error, match=message):
        open_native(path)


def tell(path: Path, keys: dict[str, int]) -> None:
    """Other numbers in place of those that are there."""
    fields = GGUFReader(path, "r+").fields
    for suffix, value in keys.items():
        field = fields[f"llama4.{suffix}"]
        field.parts[field.data[0]][0] = value


@pytest.mark.parametrize(("num_rounds", "is_right"), [(0, False), (1, True), (256, True), (257, False), (10**6, False)])
def test_rounds_are_counted(tmp_path: Path, num_rounds: int, is_right: bool) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="nanbeige", keys={"num_loops": num_rounds}))
    if is_right:
        with open_native(path, context_size=64, kv_tokens=64, num_slots=1) as backend:
            assert all_rows(backend, [1, 2, 3]).shape == (3, backend.info.vocab_size)
        return
    with pytest.raises(ModelFileInvalid, match="num_loops"):
        open_native(path)
