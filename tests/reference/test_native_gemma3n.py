"""Gemma 3n on the native executor: against float64 and libllama, however prompts are cut, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.native import NativeNeeds
from stoker.core.batch import Chunk, Truncate
from stoker.errors import ModelFileInvalid, StokerError
from stoker.models.gguf import read_gguf
from tests.brief import mostly_slow
from tests.reference.gemma3n_reference import Gemma3nReference
from tests.reference.native_runs import (
    Rows,
    all_rows,
    assert_no_farther_than_libllama,
    assert_same_bits_however_cut,
    open_native,
    step,
)
from tests.tiny_models import TinyModel, write_tiny_model

HALF: dict[str, str] = dict.fromkeys(
    ("altup_proj.weight", "altup_unembd_proj.weight", "per_layer_model_proj.weight"), "F16"
)
EIGHT: dict[str, str] = dict.fromkeys(HALF, "Q8_0") | {
    f"blk.{index}.{part}.weight": "Q8_0" for index in range(25) for part in ("laurel_l", "laurel_r", "altup_router")
}
"""As files are that a converter writes in this type."""
SHARED: dict[str, Any] = {"num_layers": 25, "has_head": False}
"""Layers from 20 on share keys, of which 24 has no window; layers from 10 on use all of their gates."""
WIDE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "head_size": 64}
FAR = 0.3
"""So far 22 layers of random numbers take what was rounded to 8 bits: libllama's own error is as large."""
MODELS = {
    "cut gates": TinyModel(architecture="gemma3n", num_layers=3),
    "shared keys": TinyModel(architecture="gemma3n", **SHARED),
    "half floats": TinyModel(architecture="gemma3n", num_layers=6, types=HALF, vector_type="F32"),
    "Q8_0": TinyModel(architecture="gemma3n", type="Q8_0", num_layers=22, types=HALF, **WIDE),
    "all in Q8_0": TinyModel(architecture="gemma3n", type="Q8_0", num_layers=22, types=EIGHT, **WIDE),
    "Q4_K": TinyModel(architecture="gemma3n", type="Q4_K", num_layers=22, types=HALF, **WIDE),
}


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


@pytest.mark.parametrize("name", mostly_slow(MODELS, ["cut gates", "shared keys", "half floats"]))
def test_no_farther_from_float64_than_libllama(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    prompts = [prompt(80, seed) for seed in range(4)]
    assert_no_farther_than_libllama(path, Gemma3nReference(path).logits, prompts, FAR)


@pytest.mark.parametrize("name", mostly_slow(["cut gates", "Q8_0", "Q4_K"], ["cut gates", "Q4_K"]))
def test_bits_do_not_depend_on_how_a_prompt_is_cut_or_who_is_beside(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    assert_same_bits_however_cut(path, prompt(150))


def test_layers_that_share_keys_keep_none(tmp_path: Path) -> None:
    """Twenty layers of 2 KV heads of 16."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["shared keys"])
    with read_gguf(path) as gguf:
        per_token = NativeNeeds([gguf]).kv_bytes("f16")
    assert per_token == 2 * 20 * 2 * 2 * 16
    with open_native(path, kv_type="f16") as backend:
        assert backend.info.kv_bytes_per_token == per_token


def test_a_file_that_says_little_is_like_one_that_says_all(tmp_path: Path) -> None:
    """What the first converters left out."""
    silent: dict[str, Any] = dict.fromkeys(
        (
            "attention.sliding_window_pattern",
            "attention.shared_kv_layers",
            "altup.active_idx",
            "altup.num_inputs",
            "activation_sparsity_scale",
            "final_logit_softcapping",
        )
    )
    found = list[Rows]()
    for keys in ({}, silent):
        path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3n", keys=keys, **SHARED))
        with open_native(path) as backend:
            found.append(all_rows(backend, prompt(60)))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention.shared_kv_layers": 6}, "shares the keys and values of none"),
        ({"attention.shared_kv_layers": 26}, "`gemma3n.attention.shared_kv_layers` is 26"),
        ({"attention.sliding_window_pattern": [True, False]}, "2 entries for 25 layers"),
        ({"attention.sliding_window": 0}, "sliding_window` is 0"),
        ({"altup.num_inputs": 3}, "it has 3 streams"),
        ({"altup.active_idx": 1}, "computes with number 1"),
        ({"embedding_length_per_layer_input": 0}, "its tokens have nothing for each layer"),
        ({"embedding_length_per_layer_input": 48}, "inputs of 48 elements"),
        ({"embedding_length_per_layer_input": 32}, "has the shape"),
        ({"activation_sparsity_scale": [1.0, 2.0]}, "2 entries for 25 layers"),
        ({"activation_sparsity_scale": [float("nan")] * 25}, "not all are finite"),
        ({"activation_sparsity_scale": [float("inf")] * 25}, "not all are finite"),
        ({"embedding_length": 96}, "has the shape"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3n", keys=keys, **SHARED))
    with pytest.raises(StokerError, match=message):
        open_native(path)


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("altup_proj.weight", (2, 64, 64), "`altup_proj.weight` has the shape"),
        ("altup_unembd_proj.weight", (3, 64, 32), "`altup_unembd_proj.weight` has the shape"),
        ("blk.0.laurel_l.weight", (48, 64), "a part of rank 48"),
        ("blk.0.laurel_l.weight", (32, 64), "`blk.0.laurel_r.weight` has the shape"),
        ("blk.0.laurel_l.weight", (2, 32, 64), "has the shape"),
        ("blk.0.altup_router.weight", (3, 64), "has the shape"),
        ("blk.0.altup_predict_coef.weight", (4, 16), "has the shape"),
        ("blk.0.altup_correct_coef.weight", (16,), "has the shape"),
        ("blk.0.altup_correct_scale.weight", (32,), "has the shape"),
    ],
)
def test_tensors_of_other_shapes_are_refused(tmp_path: Path, tensor: str, shape: tuple[int, ...], message: str) -> None:
    vectors = {tensor: np.ones(shape, np.float32)}
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3n", num_layers=3, vectors=vectors))
    with pytest.raises(ModelFileInvalid if "shape" in message else StokerError, match=message):
        open_native(path)


def test_a_row_of_zeros_is_not_stretched(tmp_path: Path) -> None:
    """Streams that are made of nothing stay nothing."""
    zeros = {"altup_proj.weight": np.zeros((3, 64, 64), np.float32)}
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3n", num_layers=3, vectors=zeros))
    with open_native(path) as backend:
        assert np.isfinite(all_rows(backend, prompt(20))).all()


@pytest.mark.parametrize("name", mostly_slow(["shared keys", "Q8_0"], ["shared keys"]))
def test_rows_that_want_no_logits_are_left_out_behind_the_last_keys(tmp_path: Path, name: str) -> None:
    """Few rows and many, of one chunk and of three, of which one wants none."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    token_ids = prompt(90)
    with open_native(path) as backend:
        expected = all_rows(backend, token_ids)
        for slot, wanted in enumerate((1, 3, 16, 17, 40), start=1):
            first = Chunk(slot, 0, tuple(token_ids[:50]), wanted)
            rows = step(backend, first, Chunk(6, 0, tuple(token_ids[:30])), Chunk(7, 0, tuple(token_ids[:20]), 2))
            np.testing.assert_array_equal(rows[:wanted], expected[50 - wanted : 50])
            np.testing.assert_array_equal(rows[wanted:], expected[18:20])
            rows = step(backend, Chunk(slot, 50, tuple(token_ids[50:]), wanted), ops=[Truncate(6, 0), Truncate(7, 0)])
            np.testing.assert_array_equal(rows, expected[90 - wanted : 90])
