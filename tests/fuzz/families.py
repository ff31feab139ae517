"""Damaged and lying files of mixtures of experts, hybrids, models with latent keys and encoders: counts of experts,
sizes of states, lists of layers, classifiers.
"""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stoker.backends.native import NativeEncoder, NativeOptions
from stoker.core.embedding import Piece, Pooling
from stoker.models.gguf import read_gguf
from tests.fuzz.model_files import FLOATS, compute, damage_header, damage_values
from tests.tiny_drafters import TinyAssistant, TinyEagle
from tests.tiny_encoders import TinyEncoder, write_encoder
from tests.tiny_models import TinyModel, write_tiny_model

ModelT = TypeVar("ModelT", TinyModel, TinyEncoder, TinyEagle, TinyAssistant)

FAMILIES = (
    TinyModel(architecture="qwen3moe", type="Q8_0", num_experts=12),
    TinyModel(architecture="qwen2moe", num_experts=12, shared_size=64),
    TinyModel(architecture="glm4moe", num_experts=12, num_dense=1, shared_size=32, num_layers=3),
    TinyModel(architecture="bailingmoe2", num_experts=16, num_dense=1, shared_size=64, num_layers=3),
    TinyModel(architecture="gpt-oss", num_experts=12, num_layers=3, head_size=32),
    TinyModel(architecture="lfm2", type="Q8_0", num_layers=3, has_head=False),
    TinyModel(architecture="lfm2moe", num_layers=4, num_experts=12, num_dense=1, has_head=False),
    TinyModel(architecture="qwen35", num_layers=4, num_draft_heads=0, has_head=False),
    TinyModel(architecture="qwen35moe", num_layers=4, num_experts=12, shared_size=64),
    TinyModel(architecture="qwen3next", num_layers=4, num_experts=12, shared_size=64, has_head=False),
    TinyModel(architecture="granitehybrid", num_layers=4, has_head=False),
    TinyModel(architecture="falcon-h1", num_layers=3),
    TinyModel(architecture="jamba", num_layers=4, num_experts=12, expert_size=96, num_dense=2),
    TinyModel(architecture="kimi-linear", num_layers=4, num_experts=12, num_dense=1, shared_size=32),
    TinyModel(architecture="mamba", num_layers=3, keys={"ssm.dt_b_c_rms": True}),
    TinyModel(architecture="mamba2", type="Q8_0", num_layers=3),
    TinyModel(architecture="nemotron_h_moe", num_layers=7, num_experts=12, shared_size=64),
    TinyModel(architecture="gemma4", num_layers=4, keys={"attention.shared_kv_layers": 1}),
    TinyModel(architecture="gemma3n", num_layers=6, keys={"attention.shared_kv_layers": 1}),
    TinyModel(architecture="deepseek2", num_experts=12, num_dense=1, shared_size=64, num_layers=3),
    TinyModel(architecture="phimoe", num_experts=12),
    TinyModel(architecture="llama4", num_experts=12, shared_size=32, num_layers=4),
    TinyModel(architecture="smallthinker", num_experts=12),
    TinyModel(architecture="nanbeige"),
    TinyModel(architecture="bitnet", is_old=True),
    TinyModel(
        architecture="deci",
        num_layers=4,
        layer_heads=((4, 2), (4, 0), (0, 0), (4, 1)),
        layer_sizes=(96, 64, 128, 0),
    ),
    TinyModel(architecture="olmo", num_kv_heads=4),
    TinyModel(type="IQ2_XS", hidden_size=256, feed_forward_size=256, head_size=64, num_layers=1),
    TinyModel(type="IQ1_S", hidden_size=256, feed_forward_size=256, head_size=64, num_layers=1),
    TinyModel(type="IQ3_S", hidden_size=256, feed_forward_size=256, head_size=64, num_layers=1),
)
ENCODERS = (
    TinyEncoder(),
    TinyEncoder(labels=2),
    TinyEncoder(architecture="nomic-bert-moe", num_experts=8, keys={"moe_every_n_layers": 2}),
    TinyEncoder(architecture="jina-bert-v2"),
    TinyEncoder(architecture="jina-bert-v3"),
    TinyEncoder(architecture="modern-bert", labels=1, keys={"attention.sliding_window": 16}),
    TinyEncoder(architecture="gemma-embedding", keys={"attention.sliding_window": 16}, num_layers=7, num_kv_heads=2),
    TinyEncoder(architecture="eurobert", type="Q8_0", num_kv_heads=2),
    TinyEncoder(architecture="neo-bert"),
)
_COUNTS: tuple[Any, ...] = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    12,
    13,
    16,
    31,
    64,
    255,
    1025,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    -1,
)
_LISTS: tuple[Any, ...] = (
    [],
    [0],
    [1],
    [4, 0],
    [0, 0, 0, 0],
    [2, 2, 2, 2],
    [4, 2, 0, 1],
    [2**31 - 1] * 4,
    [True] * 3,
    "text",
)
_SUFFIXES = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
    "attention.sliding_window_pattern", "attention.key_length_swa", "rope.dimension_count", "rope.dimension_sections",
    "rope.freq_base_swa", "nextn_predict_layers", "pooling_type", "classifier.output_labels",
)  # fmt: skip
_OF_EXPERTS = (
    "expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
    "expert_shared_count", "leading_dense_block_count", "expert_group_count", "expert_group_used_count",
    "expert_gating_func", "expert_weights_scale", "expert_weights_norm", "interleave_moe_layer_step",
    "moe_every_n_layers", "attention.kv_lora_rank", "attention.q_lora_rank", "attention.key_length_mla",
    "attention.value_length_mla", "attention.shared_kv_layers", "embedding_length_per_layer_input",
    "full_attention_interval", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank",
    "ssm.inner_size", "shortconv.l_cache", "attention.scale", "embedding_scale", "logit_scale", "residual_scale",
    "ssm.dt_b_c_rms", "kda.head_dim", "altup.num_inputs", "altup.active_idx", "num_loops", "attention.clamp_kqv",
    "activation_sparsity_scale", "dense_2_feat_in", "dense_2_feat_out", "hidden_activation", "attention.causal",
)  # fmt: skip


def family_case(rng: random.Random, folder: Path) -> str:
    """One of `FAMILIES`, with other numbers than its tensors have, or damaged."""
    path = folder / "case.gguf"
    if not is_written_wrong(rng, rng.choice(FAMILIES), path, write_tiny_model):
        return "not written"
    return compute(path, kv_type=rng.choice(["f16", "q8", "i16", None]))


def encoder_case(rng: random.Random, folder: Path) -> str:
    """One of `ENCODERS`, likewise."""
    model, path = rng.choice(ENCODERS), folder / "case.gguf"
    if not is_written_wrong(rng, model, path, write_encoder):
        return "not written"
    return _embed(path, Pooling.RANK if model.labels else rng.choice((Pooling.MEAN, Pooling.CLS, Pooling.LAST)))


def is_written_wrong(rng: random.Random, model: ModelT, path: Path, write: Callable[[Path, ModelT], Path]) -> bool:
    """Writes a file whose numbers are not those of its tensors, or a damaged one. False: it was not written."""
    is_damaged = rng.random() < 0.4
    told = model if is_damaged else replace(model, keys={**model.keys, **_lies(rng)})
    if not _is_written(lambda: write(path, told)):
        return False
    if is_damaged:
        _damage(rng, path)
    return True


def _is_written(write: Callable[[], Path]) -> bool:
    """The writer takes not every lie."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            write()
        except (ArithmeticError, LookupError, struct.error, ValueError, TypeError, MemoryError):
            return False
    return True


def _lies(rng: random.Random) -> dict[str, Any]:
    suffixes = rng.sample((*_SUFFIXES, *_OF_EXPERTS), rng.choice([1, 1, 2, 4]))
    return {suffix: rng.choice((*_COUNTS, *_LISTS, *FLOATS, None)) for suffix in suffixes}


def _damage(rng: random.Random, path: Path) -> None:
    with read_gguf(path) as gguf:
        header = gguf.data_offset
    changed = bytearray(path.read_bytes())
    rng.choice([damage_header, damage_values])(rng, changed, header)
    path.write_bytes(changed)


def _embed(path: Path, pooling: Pooling) -> str:
    options = NativeOptions(context_size=64, kv_tokens=64, num_slots=2, threads=2, pooling=pooling)
    with read_gguf(path) as gguf:
        encoder = NativeEncoder([gguf], options)
        top = encoder.info.vocab_size - 1
        texts = ((0,), (1 % (top + 1), top, 0, min(7, top)))
        rows = encoder.embed([Piece(slot, 0, text, is_last=True) for slot, text in enumerate(texts, 1)])
        encoder.close()
    assert rows.shape[0] == 2
    return "computed"
