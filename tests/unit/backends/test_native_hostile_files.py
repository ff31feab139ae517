"""Damaged and lying model files through the native loader: a clear error or a model that computes, never a crash."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.core.batch import Batch, Chunk
from stoker.errors import ModelError, ResourceExhausted
from stoker.models.gguf import read_gguf
from tests.reference.native_runs import open_native
from tests.tiny_models import TinyModel, write_tiny_model

MODELS = [
    TinyModel(type="Q4_0", num_layers=1),
    TinyModel(architecture="gemma3", type="Q8_0", num_layers=1, keys={"attention.sliding_window": 4}, has_head=False),
    TinyModel(architecture="phi3", num_layers=1, vectors={"rope_factors_short.weight": np.ones(8, np.float32)}),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, int]]:
    """Whole files with the length of their headers."""
    found: list[tuple[bytes, int]] = []
    for index, model in enumerate(MODELS):
        path = write_tiny_model(tmp_path_factory.mktemp("tiny") / f"{index}.gguf", model)
        with read_gguf(path) as gguf:
            found.append((path.read_bytes(), gguf.data_offset))
    return found


def damage(rng: random.Random, data: bytearray, header: int) -> None:
    """A few numbers of the header replaced: counts, sizes, offsets, types, letters of names."""
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(24, header - 8)
        kind = rng.random()
        if kind < 0.4:
            data[at] = rng.randrange(256)
        elif kind < 0.7:
            data[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 2, 3, 7, 31, 33, 255, 2**16, 2**31, 2**32 - 1]))
        elif kind < 0.9:
            data[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**32, 2**40, 2**63, 2**64 - 1]))
        else:
            del data[rng.randrange(header, len(data)) :]


def try_it(path: Path) -> None:
    """Numbers that are merely strange give strange logits, NaN among them; that is for the sampler to notice."""
    with suppress(ModelError, ResourceExhausted), open_native(path, context_size=64, kv_tokens=64) as backend:
        rows = backend.forward(Batch(0, (Chunk(0, 0, tuple(range(5)), 1),)))
        assert rows.shape == (1, backend.info.vocab_size)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_a_clear_error(files: list[tuple[bytes, int]], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data, header = rng.choice(files)
    changed = bytearray(data)
    damage(rng, changed, header)
    path = tmp_path / "m.gguf"
    path.write_bytes(changed)
    try_it(path)


@pytest.mark.parametrize("fill", [b"\xff", b"\x00", b"\x7f\x80"])
def test_weights_may_be_any_bytes(files: list[tuple[bytes, int]], tmp_path: Path, fill: bytes) -> None:
    for data, header in files:
        path = tmp_path / "m.gguf"
        path.write_bytes(data[:header] + (fill * len(data))[: len(data) - header])
        try_it(path)
