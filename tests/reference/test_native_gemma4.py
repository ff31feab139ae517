"""Gemma 4 on the native executor: against float64 and libllama, however prompts are cut, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.native import NativeNeeds
from stoker.errors import ModelFileInvalid, StokerError
from stoker.models.gguf import read_gguf
from tests.brief import slow_are
from tests.reference.gemma4_reference import Gemma4Reference
from tests.reference.native_runs import assert_no_farther_than_libllama, assert_same_bits_however_cut, open_native
from tests.tiny_models import TinyModel, write_tiny_model

SHARED: dict[str, Any] = {"num_layers": 6, "keys": {"attention.shared_kv_layers": 2}}
SHARED_AND_WIDE = {"attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 256}
WIDE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "head_size": 64}
MODELS = {
    "inputs for layers": TinyModel(architecture="gemma4", num_layers=3, has_head=False),
    "shared keys, a wider block": TinyModel(architecture="gemma4", layer_sizes=(96, 96, 96, 96, 192, 192), **SHARED),
    "heads by layer": TinyModel(architecture="gemma4", num_layers=4, layer_heads=((4, 2), (4, 1), (4, 2), (4, 1))),
    "experts": TinyModel(architecture="gemma4", num_layers=4, num_experts=12, has_head=False),
    "Q8_0": TinyModel(architecture="gemma4", type="Q8_0", **SHARED),
    "experts, Q8_0": TinyModel(architecture="gemma4", type="Q8_0", num_layers=4, num_experts=12),
    "Q4_K": TinyModel(architecture="gemma4", type="Q4_K", num_layers=6, keys=SHARED_AND_WIDE, **WIDE),
}


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


@pytest.mark.parametrize("name", slow_are(["experts, Q8_0", "Q4_K"], MODELS))
def test_no_farther_from_float64_than_libllama(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    prompts = [prompt(80, seed) for seed in range(4)]
    assert_no_farther_than_libllama(path, Gemma4Reference(path).logits, prompts, 0.1)


@pytest.mark.parametrize("name", ["shared keys, a wider block", "experts, Q8_0", "Q4_K"])
def test_bits_do_not_depend_on_how_a_prompt_is_cut_or_who_is_beside(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    assert_same_bits_however_cut(path, prompt(150))


def test_layers_that_share_keys_keep_none(tmp_path: Path) -> None:
    """Two layers of 2 KV heads of 16, and two of 2 of 32."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["shared keys, a wider block"])
    with read_gguf(path) as gguf:
        per_token = NativeNeeds([gguf]).kv_bytes("f16")
    assert per_token == 2 * 2 * (2 * 2 * 16 + 2 * 2 * 32)
    with open_native(path, kv_type="f16") as backend:
        assert backend.info.kv_bytes_per_token == per_token


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention.shared_kv_layers": 5}, "shares the keys and values of none"),
        ({"attention.shared_kv_layers": 7}, "`gemma4.attention.shared_kv_layers` is 7"),
        ({"attention.sliding_window_pattern": None}, "does not list these"),
        ({"attention.sliding_window_pattern": [True, False]}, "2 entries for 6 layers"),
        ({"attention.key_length_swa": 24}, "differ"),
        ({"attention.key_length_swa": 24, "attention.value_length_swa": 24}, "heads of 24"),
        ({"rope.dimension_count_swa": 64}, "dimension_count_swa` is 64"),
        ({"embedding_length_per_layer_input": 48}, "inputs of 48 elements"),
        ({"embedding_length": 96}, "has the shape"),
        ({"attention.sliding_window": 0}, "sliding_window` is 0"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    model = TinyModel(architecture="gemma4", num_layers=6, keys=keys)
    path = write_tiny_model(tmp_path / "m.gguf", model)
    with pytest.raises(StokerError, match=message):
        open_native(path)


def test_a_scale_of_zero_is_refused(tmp_path: Path) -> None:
    zero = {"blk.0.layer_output_scale.weight": np.zeros(1, np.float32)}
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="gemma4", vectors=zero))
    with pytest.raises(ModelFileInvalid, match=r"layer_output_scale\.weight` is 0"):
        open_native(path)
