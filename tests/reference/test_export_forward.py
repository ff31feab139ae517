"""Exported models against float64: every architecture, way to attend, and type of weights, by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference.export_runs import ExportedModel, exported
from tests.reference.native_reference import NativeReference
from tests.reference.native_runs import relative_error
from tests.tiny_models import EXPORTED_TYPES, TinyModel, write_tiny_model

DIVISORS = np.linspace(1, 6, 8).astype(np.float32)
SWA: dict[str, Any] = {"attention.sliding_window": 24, "rope.freq_base": 1e6}
YARN: dict[str, Any] = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
K_SHAPE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "num_heads": 4, "head_size": 64}
MODELS: dict[str, TinyModel] = {
    "llama": TinyModel(),
    "llama, tied": TinyModel(has_head=False),
    "llama, one head for all": TinyModel(num_kv_heads=1),
    "llama 3": TinyModel(vectors={"rope_freqs.weight": DIVISORS}),
    "qwen2, yarn": TinyModel(architecture="qwen2", keys={**YARN, "rope.scaling.original_context_length": 64}),
    "qwen3, wide heads": TinyModel(architecture="qwen3", head_size=48),
    "phi3, partly rotated": TinyModel(architecture="phi3", head_size=32, keys={"rope.dimension_count": 16}),
    "gemma3, windows": TinyModel(architecture="gemma3", num_layers=7, keys=SWA),
    "gemma3, soft caps": TinyModel(architecture="gemma3", keys={"final_logit_softcapping": 2.0}, has_head=False),
    "gemma": TinyModel(architecture="gemma", has_head=False),
    "gemma2": TinyModel(architecture="gemma2", num_layers=3, has_head=False),
    "granite": TinyModel(architecture="granite"),
    "smollm3": TinyModel(architecture="smollm3", num_layers=5),
    "ernie4_5": TinyModel(architecture="ernie4_5"),
    "seed_oss": TinyModel(architecture="seed_oss"),
    "exaone": TinyModel(architecture="exaone", vectors={"rope_freqs.weight": DIVISORS}),
    "glm4, partly rotated": TinyModel(architecture="glm4", head_size=32, keys={"rope.dimension_count": 16}),
    "minicpm": TinyModel(architecture="minicpm"),
    "internlm2": TinyModel(architecture="internlm2"),
}
TOKENS = np.random.default_rng(0).integers(0, 256, 80).tolist()
CHUNKS = (30, 25, 1, 1)


@pytest.mark.parametrize("attention", ["gqa", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture(tmp_path: Path, name: str, attention: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    model = ExportedModel(exported(path, tmp_path / "onnx", attention=attention))
    expected = NativeReference(path).logits(TOKENS)
    assert relative_error(model.rows(TOKENS, CHUNKS), expected) < 3e-5


@pytest.mark.parametrize("attention", ["gqa", "plain"])
@pytest.mark.parametrize("name", ["llama", "gemma3, windows"])
def test_keys_and_values_of_half_the_size(tmp_path: Path, name: str, attention: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    model = ExportedModel(exported(path, tmp_path / "onnx", attention=attention, kv_type="f16"))
    assert {item.type for name, item in model.inputs.items() if "past" in name} == {"tensor(float16)"}
    error = relative_error(model.rows(TOKENS, CHUNKS), NativeReference(path).logits(TOKENS))
    assert 1e-4 < error < 3e-3


@pytest.mark.parametrize("kind", [*EXPORTED_TYPES, "Q8_0, own head", "Q4_K, own head", "F16, own head"])
def test_every_type_is_computed_exactly(tmp_path: Path, kind: str) -> None:
    kind, *own_head = kind.split(", ")
    model = TinyModel(type=kind, num_layers=1, has_head=bool(own_head), **K_SHAPE)
    path = write_tiny_model(tmp_path / "m.gguf", model)
    found = ExportedModel(exported(path, tmp_path / "onnx", activations="f32", context_size=64)).rows(TOKENS[:40])
    assert relative_error(found, NativeReference(path).logits(TOKENS[:40])) < 1e-4


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_queries_keys_and_values_of_different_types(tmp_path: Path, architecture: str) -> None:
    types = {"blk.0.attn_v.weight": "Q6_K", "blk.0.ffn_up.weight": "F16"}
    model = TinyModel(type="Q4_K", architecture=architecture, num_layers=1, types=types, **K_SHAPE)
    path = write_tiny_model(tmp_path / "m.gguf", model)
    for attention in ("gqa", "plain"):
        found = ExportedModel(exported(path, tmp_path / attention, activations="f32", attention=attention)).rows(TOKENS)
        assert relative_error(found, NativeReference(path).logits(TOKENS)) < 1e-4


@pytest.mark.parametrize("lengths", [(20, 7, 33)], ids=str)
def test_padded_prompts_beside_each_other(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """Plain attention takes padding on the left, as Hugging Face's tokenizers pad for generation."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["gemma3, windows"])
    model = ExportedModel(exported(path, tmp_path / "onnx", attention="plain"))
    longest = max(lengths)
    ids, mask = np.zeros((2, len(lengths), longest), dtype=np.int64)
    for row, length in enumerate(lengths):
        ids[row, longest - length :], mask[row, longest - length :] = TOKENS[:length], 1
    logits, _ = model.step(ids, mask, model.empty_cache(len(lengths)))
    reference = NativeReference(path)
    for row, length in enumerate(lengths):
        assert relative_error(logits[row, -length:], reference.logits(TOKENS[:length])) < 3e-5


def test_prompts_and_then_tokens_of_different_lengths(tmp_path: Path) -> None:
    """`GroupQueryAttention` takes padding on the right, and decodes sequences of different lengths together."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["gemma3, windows"])
    model = ExportedModel(exported(path, tmp_path / "onnx"))
    lengths, reference = (20, 7, 33), NativeReference(path)
    ids, mask = np.zeros((2, 3, 33), dtype=np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = TOKENS[:length], 1
    logits, cache = model.step(ids, mask, model.empty_cache(3))
    for row, length in enumerate(lengths):
        assert relative_error(logits[row, :length], reference.logits(TOKENS[:length])) < 3e-5
    one = np.array([[TOKENS[length]] for length in lengths], dtype=np.int64)
    mask = np.array([[1] * (length + 1) + [0] * (33 - length) for length in lengths], dtype=np.int64)
    logits, _ = model.step(one, mask, cache)
    for row, length in enumerate(lengths):
        assert relative_error(logits[row], reference.logits(TOKENS[: length + 1], num_rows=1)) < 3e-5
