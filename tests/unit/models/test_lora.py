"""Files that are adapters of a model, and those that are not: each is refused with an error that says why."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import AdapterInvalid
from stoker.models.gguf import read_gguf
from stoker.models.lora import LoraTarget, content_key, lora_target, read_lora
from tests.adapter_files import Pair, random_pairs, write_adapter
from tests.tiny_models import TinyModel, write_tiny_model

QUERY = "blk.0.attn_q.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("lora") / "m.gguf", TinyModel())


@pytest.fixture(scope="module")
def target(model: Path) -> LoraTarget:
    with read_gguf(model) as file:
        return lora_target([file])


def pair(inputs: int = 64, outputs: int = 64, rank: int = 2, rank_b: int | None = None) -> Pair:
    a = np.ones((rank, inputs), dtype=np.float32)
    return a, np.ones((outputs, rank if rank_b is None else rank_b), dtype=np.float32)


def refusal(path: Path, target: LoraTarget) -> str:
    with pytest.raises(AdapterInvalid) as failure:
        read_lora(path, target)
    assert failure.value.fields["path"] == str(path)
    assert str(path) in failure.value.message
    return failure.value.message


def test_an_adapter_that_fits(model: Path, target: LoraTarget, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1, rank=3), alpha=6.0)
    found = read_lora(path, target)
    assert (found.rank, found.alpha, found.num_matrices) == (3, 6.0, 14)
    assert found.size_bytes == path.stat().st_size


def test_the_key_names_the_content(model: Path, target: LoraTarget, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1))
    copy = Path(shutil.copy(path, tmp_path / "copy.gguf"))
    other = write_adapter(tmp_path / "b.gguf", random_pairs(model, 1), alpha=8.5)
    assert read_lora(path, target).key == read_lora(copy, target).key == content_key(path)
    assert read_lora(path, target).key != read_lora(other, target).key, "alpha is a part of it"


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ({QUERY: pair(inputs=32)}, "do not fit"),
        ({QUERY: pair(outputs=32)}, "do not fit"),
        ({QUERY: pair(rank=2, rank_b=3)}, "do not fit"),
        ({QUERY: pair(rank=4097)}, "rank 4097"),
        ({"blk.9.attn_q.weight": pair()}, "which this model does not have"),
        ({"blk.0.attn_norm.weight": pair()}, "is not a matrix"),
        ({}, "no tensors"),
    ],
)
def test_shapes_are_checked(target: LoraTarget, tmp_path: Path, pairs: dict[str, Pair], why: str) -> None:
    assert why in refusal(write_adapter(tmp_path / "a.gguf", pairs), target)


def test_half_a_pair(target: LoraTarget, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", {QUERY: pair()})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"attn_q.weight.lora_b", b"attn_k.weight.lora_b"))
    assert "`blk.0.attn_q.weight.lora_b` is missing" in refusal(path, target)
    path.write_bytes(data.replace(b"weight.lora_b", b"weight.norm_b"))
    assert "neither an A nor a B" in refusal(path, target)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"general__type": "model"}, "it is a model"),
        ({"general__type": None}, "it is a model"),
        ({"adapter__type": "vera"}, "of type 'vera'"),
        ({"architecture": "gemma3"}, "architecture gemma3, not llama"),
        ({"adapter__alora__invocation_tokens": "x"}, "aLoRA"),
        ({"alpha": float("nan")}, "alpha is nan"),
    ],
)
def test_foreign_files(target: LoraTarget, tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    assert why in refusal(write_adapter(tmp_path / "a.gguf", {QUERY: pair()}, **keys), target)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"once upon a time"])
def test_no_gguf(target: LoraTarget, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    assert "LoRA adapter in GGUF is needed" in refusal(path, target)


def test_truncated_and_missing(model: Path, target: LoraTarget, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1))
    for length in (40, path.stat().st_size // 2, path.stat().st_size - 200):
        path.write_bytes(path.read_bytes()[:length])
        assert ".." not in refusal(path, target)
    refusal(tmp_path / "none.gguf", target)
    refusal(tmp_path, target)
    assert "it is a model" in refusal(model, target)
