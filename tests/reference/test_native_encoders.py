"""Embeddings and scores of the native executor against float64, and against libllama's own distance from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.llama import EncoderOptions, LlamaEncoder
from stoker.backends.native import NativeEncoder, NativeOptions
from stoker.core.embedding import Piece, Pooling
from stoker.models.gguf import read_gguf
from tests.brief import slow_are
from tests.reference.encoder_reference import EncoderReference
from tests.tiny_encoders import TinyEncoder, write_encoder
from tests.tiny_models import ALL_TYPES

WIDE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "head_size": 64, "num_layers": 2}
WINDOWS: dict[str, Any] = {"attention.sliding_window": 16, "rope.freq_base": 160000.0}
TYPES = [name for name in ALL_TYPES if name != "Q1_0"]
"""Without the type whose weights leave so much noise that few texts do not tell two executors apart."""

MODELS: dict[str, TinyEncoder] = {
    **{f"type {name}": TinyEncoder(type=name, **WIDE) for name in TYPES},
    "bert": TinyEncoder(),
    "bert, long": TinyEncoder(context_length=700, num_layers=2),
    "nomic-bert": TinyEncoder(architecture="nomic-bert"),
    "nomic-bert-moe": TinyEncoder(architecture="nomic-bert-moe", num_experts=8, keys={"moe_every_n_layers": 2}),
    "jina-bert-v2": TinyEncoder(architecture="jina-bert-v2"),
    "jina-bert-v2, fused": TinyEncoder(
        architecture="jina-bert-v2", has_gate=False, hidden_size=96, num_heads=6, num_kv_heads=6
    ),
    "jina-bert-v3": TinyEncoder(architecture="jina-bert-v3"),
    "modern-bert": TinyEncoder(architecture="modern-bert", keys=WINDOWS),
    "modern-bert, silu": TinyEncoder(architecture="modern-bert", keys={"hidden_activation": "silu"}),
    "gemma-embedding": TinyEncoder(architecture="gemma-embedding", keys=WINDOWS, num_layers=7, num_kv_heads=2),
    "gemma-embedding, projected": TinyEncoder(
        architecture="gemma-embedding",
        num_kv_heads=1,
        dense_size=128,
        keys={
            **WINDOWS,
            "dense_2_feat_in": 64, "dense_2_feat_out": 128, "dense_3_feat_in": 128, "dense_3_feat_out": 64,
        },
    ),
    "eurobert": TinyEncoder(architecture="eurobert", num_kv_heads=2),
    "neo-bert": TinyEncoder(architecture="neo-bert"),
}  # fmt: skip
RANKERS: dict[str, TinyEncoder] = {
    "bert": TinyEncoder(labels=1),
    "bert, two labels": TinyEncoder(labels=2),
    "modern-bert": TinyEncoder(architecture="modern-bert", labels=1, keys=WINDOWS),
    "jina-bert-v2": TinyEncoder(architecture="jina-bert-v2", labels=1),
}
NO_LLAMA = ("gemma-embedding, projected",)
"""Which libllama pools in a graph that is not the one asked for here."""
NOISE = 1.1
"""Where inputs are rounded to 8 bits, which of two is nearer is luck to so much."""
LENGTHS = (1, 3, 31, 33, 64, 100)


def open_encoder(path: Path, pooling: Pooling, **options: Any) -> NativeEncoder:
    defaults: dict[str, Any] = {"context_size": 700, "kv_tokens": 700, "threads": 1, "kv_type": "f32"}
    with read_gguf(path) as gguf:
        return NativeEncoder([gguf], NativeOptions(**(defaults | options), pooling=pooling))


def texts_of(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 256, length).tolist() for length in lengths]


def pieces_of(texts: list[list[int]]) -> list[Piece]:
    return [Piece(1 + slot, 0, tuple(text), is_last=True) for slot, text in enumerate(texts)]


def error_of(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


MOST_TYPES = [f"type {name}" for name in TYPES if name not in ("F32", "Q8_0", "Q4_K", "IQ2_XS")]


@pytest.mark.parametrize("name", slow_are(MOST_TYPES, MODELS))
def test_embeddings_are_at_least_as_near_to_float64_as_libllamas(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    path = write_encoder(tmp_path / "m.gguf", model)
    reference = EncoderReference(path)
    texts = texts_of((600, 513, 7) if model.context_length > 512 else LENGTHS)
    pooling = Pooling.MEAN
    wanted = np.stack([reference.embedding(text, pooling.value) for text in texts])
    encoder = open_encoder(path, pooling)
    assert encoder.embedding.size == wanted.shape[1]
    found = np.concatenate([encoder.embed(pieces_of([text])) for text in texts])
    encoder.close()
    is_exact = model.type == "F32"
    assert error_of(found, wanted) < (1e-5 if is_exact else 0.05)
    if name not in NO_LLAMA:
        llama = LlamaEncoder(path, EncoderOptions(max_tokens=700, pooling=pooling, threads=1))
        beside = np.concatenate([llama.embed(pieces_of([text])) for text in texts])
        llama.close()
        assert error_of(beside, wanted) < 0.1
        assert error_of(found, wanted) <= NOISE * error_of(beside, wanted)


@pytest.mark.parametrize("pooling", [Pooling.CLS, Pooling.LAST])
@pytest.mark.parametrize("name", ["bert", "modern-bert"])
def test_poolings(tmp_path: Path, name: str, pooling: Pooling) -> None:
    path = write_encoder(tmp_path / "m.gguf", MODELS[name])
    reference, texts = EncoderReference(path), texts_of()
    encoder = open_encoder(path, pooling)
    found = encoder.embed(pieces_of(texts))
    encoder.close()
    assert error_of(found, np.stack([reference.embedding(text, pooling.value) for text in texts])) < 1e-5


@pytest.mark.parametrize("name", RANKERS)
def test_scores_are_those_of_the_reference_and_of_libllama(tmp_path: Path, name: str) -> None:
    path = write_encoder(tmp_path / "m.gguf", RANKERS[name])
    reference, texts = EncoderReference(path), texts_of()
    encoder = open_encoder(path, Pooling.RANK)
    found = encoder.embed(pieces_of(texts))[:, 0]
    encoder.close()
    np.testing.assert_allclose(found, [reference.score(text) for text in texts], atol=1e-4)
    if RANKERS[name].labels == 1:  # of several it gives the first one's output
        llama = LlamaEncoder(path, EncoderOptions(max_tokens=128, pooling=Pooling.RANK, threads=1))
        beside = [float(llama.embed(pieces_of([text]))[0, 0]) for text in texts]
        llama.close()
        np.testing.assert_allclose(found, beside, atol=0.02)


@pytest.mark.parametrize("name", ["bert", "modern-bert", "jina-bert-v2", "nomic-bert-moe"])
def test_bits_do_not_depend_on_company_threads_or_order(tmp_path: Path, name: str) -> None:
    path = write_encoder(tmp_path / "m.gguf", MODELS[name])
    texts = texts_of()
    encoder = open_encoder(path, Pooling.MEAN, kv_type=None)
    alone = np.concatenate([encoder.embed(pieces_of([text])) for text in texts])
    np.testing.assert_array_equal(encoder.embed(pieces_of(texts[::-1]))[::-1], alone)
    encoder.close()
    encoder = open_encoder(path, Pooling.MEAN, kv_type=None, threads=3)
    np.testing.assert_array_equal(encoder.embed(pieces_of(texts)), alone)
    encoder.close()
