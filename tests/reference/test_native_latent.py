"""Latent keys and values on the native executor: against float64 and libllama, however prompts are cut; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from stoker.backends.native import KVType, NativeNeeds
from stoker.errors import StokerError
from stoker.models.gguf import read_gguf
from tests.brief import every
from tests.gguf_values import write_values
from tests.reference.latent_reference import LatentReference
from tests.reference.native_runs import (
    all_rows,
    assert_same_bits_however_cut,
    libllama_rows,
    open_native,
    relative_error,
)
from tests.tiny_models import TinyModel, write_tiny_model

EXPERTS: dict[str, Any] = {"num_experts": 12, "num_dense": 1, "num_layers": 3, "shared_size": 64}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
KIMI: dict[str, Any] = {**EXPERTS, "num_layers": 4, "shared_size": 32}
FACTORS = {
    "rope_factors_short.weight": np.linspace(1, 3, 8).astype(np.float32),
    "rope_factors_long.weight": np.linspace(2, 6, 8).astype(np.float32),
}
LONG_ROPE: dict[str, Any] = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19}
MODELS = {
    "queries from fewer numbers": TinyModel(architecture="deepseek2", **EXPERTS),
    "sigmoids": TinyModel(
        architecture="deepseek2",
        keys={"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.8},
        **EXPERTS,
    ),
    "yarn": TinyModel(architecture="deepseek2", keys=YARN, **EXPERTS),
    "yarn, scores that grow": TinyModel(
        architecture="deepseek2", keys={**YARN, "rope.scaling.yarn_log_multiplier": 0.0707}, **EXPERTS
    ),
    "wide": TinyModel(architecture="deepseek2", keys={"attention.kv_lora_rank": 512}, **EXPERTS),
    "Q8_0": TinyModel(architecture="deepseek2", type="Q8_0", **EXPERTS),
    "an old file": TinyModel(architecture="deepseek2", is_old=True, keys=YARN, **EXPERTS),
    "an old file, Q8_0": TinyModel(architecture="deepseek2", is_old=True, type="Q8_0", **EXPERTS),
    "kimi-linear": TinyModel(architecture="kimi-linear", **KIMI),
    "kimi-linear, Q8_0": TinyModel(architecture="kimi-linear", type="Q8_0", **KIMI),
    "minicpm3": TinyModel(architecture="minicpm3"),
    "minicpm3, Q8_0": TinyModel(architecture="minicpm3", type="Q8_0"),
    "minicpm3, short": TinyModel(architecture="minicpm3", keys=LONG_ROPE, vectors=FACTORS),
    "minicpm3, long": TinyModel(
        architecture="minicpm3", keys={**LONG_ROPE, "rope.scaling.original_context_length": 64}, vectors=FACTORS
    ),
}
PLM = {
    "plm": TinyModel(architecture="plm", has_head=False),
    "plm, Q8_0": TinyModel(architecture="plm", type="Q8_0", has_head=False),
    "plm, Q4_K": TinyModel(
        architecture="plm",
        type="Q4_K",
        types={f"blk.{index}.attn_{part}.weight": "Q8_0" for index in (0, 1) for part in ("kv_b", "output")},
        hidden_size=256,
        feed_forward_size=512,
        has_head=False,
    ),
}
LITE = TinyModel(
    architecture="deepseek2",
    type="Q8_0",
    num_experts=12,
    num_dense=1,
    num_layers=27,
    shared_size=64,
    keys={"attention.q_lora_rank": 0},
)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


@pytest.mark.parametrize("name", every(2, MODELS))
def test_no_farther_from_float64_than_libllama(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    ours, theirs = list[float](), list[float]()
    for seed in range(4):
        token_ids = prompt(80, seed)
        expected = LatentReference(path).logits(token_ids)
        with open_native(path) as backend:
            ours.append(relative_error(all_rows(backend, token_ids), expected))
        theirs.append(relative_error(libllama_rows(path, token_ids), expected))
    assert np.median(np.asarray(ours) / theirs) <= 1.1, (ours, theirs)  # one row that chooses otherwise is no error


@pytest.mark.parametrize(
    "name",
    [
        "queries from fewer numbers",
        "sigmoids",
        "yarn, scores that grow",
        "an old file",
        "minicpm3",
        "minicpm3, long",
        "plm",
    ],
)
def test_with_exact_keys_and_weights_it_is_exact(tmp_path: Path, name: str) -> None:
    """Rounded keys make rows choose other experts here and there, libllama's as well."""
    path = write_tiny_model(tmp_path / "m.gguf", {**MODELS, **PLM}[name])
    token_ids = prompt(80)
    with open_native(path, kv_type="f32") as backend:
        assert relative_error(all_rows(backend, token_ids), LatentReference(path).logits(token_ids)) < 2e-5


@pytest.mark.parametrize("name", PLM)
def test_one_matrix_makes_keys_and_values_of_all_heads(tmp_path: Path, name: str) -> None:
    """Beside float64 alone: libllama's graph of `plm` stops with an assertion, whatever is computed."""
    path = write_tiny_model(tmp_path / "m.gguf", PLM[name])
    token_ids = prompt(80)
    with open_native(path) as backend:
        assert relative_error(all_rows(backend, token_ids), LatentReference(path).logits(token_ids)) < 0.06


@pytest.mark.parametrize(("kv_type", "limit"), [("q8", 0.1), ("q4", 0.5)])
def test_few_bits_of_a_latent_vector_bear_being_spread(tmp_path: Path, kv_type: KVType, limit: float) -> None:
    """Keys, queries, and what attention makes of the values: all of them, or none."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["yarn"])
    token_ids = prompt(80)
    with open_native(path, kv_type=kv_type) as backend:
        assert relative_error(all_rows(backend, token_ids), LatentReference(path).logits(token_ids)) < limit


def test_the_smaller_models_make_queries_at_once(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", LITE)
    token_ids = prompt(40)
    expected = LatentReference(path).logits(token_ids)
    with open_native(path) as backend:
        error = relative_error(all_rows(backend, token_ids), expected)
    assert error <= 1.1 * relative_error(libllama_rows(path, token_ids), expected)


@pytest.mark.parametrize("name", ["Q8_0", "wide", "minicpm3, Q8_0", "plm, Q8_0"])
def test_bits_do_not_depend_on_how_a_prompt_is_cut_or_who_is_beside(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", {**MODELS, **PLM}[name])
    assert_same_bits_however_cut(path, prompt(150))


def test_one_vector_of_each_position_is_kept(tmp_path: Path) -> None:
    """In three layers, as a key and as a value, of 64 and 16 elements."""
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["yarn"])
    with read_gguf(path) as gguf:
        needs = NativeNeeds([gguf])
        assert (needs.kv_bytes("f16"), needs.state_bytes) == (3 * 2 * 2 * 80, 0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention.key_length_mla": None}, "no tensor `blk.0.attn_kv_b.weight`|has the shape|tensors"),
        ({"attention.key_length": 96}, "cannot be 64 latent ones and 16"),
        ({"attention.key_length_mla": 16}, "of 16 elements of a head 16 are rotated"),
        ({"attention.head_count_kv": 2}, "cannot be 64 latent ones and 16"),
        ({"attention.key_length_mla": 40}, "with heads of 24 and 16 elements"),
        ({"attention.value_length_mla": 40}, "that give 40 elements"),
        ({"attention.value_length_mla": 64}, "has the shape"),
        ({"attention.q_lora_rank": 24}, "of queries of 24 numbers"),
        ({"attention.q_lora_rank": 0}, "no tensor `blk.0.attn_q.weight`|tensors"),
        ({"attention.kv_lora_rank": 2048, "attention.key_length": 2064}, "heads of 2064 elements"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, "not by YaRN"),
        ({"attention.temperature_scale": 0.1}, "grow with their position"),
    ],
)
def test_files_that_contradict_themselves_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    good = TinyModel(architecture="deepseek2", **EXPERTS)
    path = write_tiny_model(tmp_path / "m.gguf", good)
    bad = rewritten(path, tmp_path / "bad.gguf", {f"deepseek2.{key}": value for key, value in keys.items()})
    with pytest.raises(StokerError, match=message):
        open_native(bad)


def rewritten(path: Path, to: Path, keys: dict[str, Any]) -> Path:
    """The same tensors, with other values of some keys."""
    reader, writer = GGUFReader(path), GGUFWriter(to, "deepseek2")
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key not in keys and key != "general.architecture":
            writer.add_key_value(key, entry.contents(), entry.types[0], entry.types[-1])
    write_values(writer, keys)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
