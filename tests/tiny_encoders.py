"""Small encoders with random weights, in every architecture of them that the native executor knows, as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from tests.gguf_values import write_values
from tests.tiny_models import TinyModel, write_tensor, write_vocabulary

Shapes = dict[str, tuple[int, ...]]

POST_NORMS = ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3")
RMS = ("gemma-embedding", "eurobert", "neo-bert")
ENCODERS = (*POST_NORMS, *RMS, "modern-bert")
_RANK = 4


@dataclass(frozen=True, kw_only=True)
class TinyEncoder:
    """What to write. `keys` are own keys of the architecture."""

    architecture: str = "bert"
    type: str = "F32"
    hidden_size: int = 64
    feed_forward_size: int = 96
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 4
    head_size: int = 16
    num_experts: int = 0
    context_length: int = 128
    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    labels: int = 0
    """Of a classifier; 0 = there is none."""
    dense_size: int = 0
    """Of a projection behind pooling, inside."""
    has_gate: bool = True
    """Of jina-bert-v2: in a tensor of its own."""
    seed: int = 1


def write_encoder(path: Path, model: TinyEncoder) -> Path:
    """Writes the file and returns its path."""
    plain = TinyModel(
        type=model.type,
        head_type="F32" if model.type.startswith("IQ") else None,
        types=dict.fromkeys(("position_embd.weight", "token_types.weight", "cls.output.weight"), "F32"),
        num_experts=model.num_experts,
    )
    rng = np.random.default_rng(model.seed)
    writer = GGUFWriter(path, model.architecture)
    write_values(writer, {f"{model.architecture}.{key}": value for key, value in _keys(model).items()})
    write_vocabulary(writer, plain)
    writer.add_token_type_count(2)
    for name, shape in _shapes(model, plain.vocab_size).items():
        write_tensor(writer, rng, plain, name, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _keys(model: TinyEncoder) -> dict[str, Any]:
    eps = "attention.layer_norm_rms_epsilon" if model.architecture in RMS else "attention.layer_norm_epsilon"
    return {
        "block_count": model.num_layers,
        "context_length": model.context_length,
        "embedding_length": model.hidden_size,
        "feed_forward_length": model.feed_forward_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_size,
        "attention.value_length": model.head_size,
        "attention.causal": False,
        eps: 1e-5,
        "rope.freq_base": 10000.0,
        **({"expert_count": model.num_experts, "expert_used_count": 2} if model.num_experts else {}),
        **({"pooling_type": _RANK} if model.labels else {}),
        **({"classifier.output_labels": [str(i) for i in range(model.labels)]} if model.labels > 1 else {}),
        **model.keys,
    }


def _shapes(model: TinyEncoder, vocab_size: int) -> Shapes:
    hidden = model.hidden_size
    shapes: Shapes = {"token_embd.weight": (vocab_size, hidden)}
    if model.architecture in POST_NORMS:
        shapes |= {"token_types.weight": (2, hidden), **_norm("token_embd_norm", hidden, has_bias=True)}
    if model.architecture == "bert":
        shapes["position_embd.weight"] = (model.context_length, hidden)
    if model.architecture == "modern-bert":
        shapes |= _norm("token_embd_norm", hidden)
    for index in range(model.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in _layer(model, index).items()}
    if model.architecture not in POST_NORMS:
        shapes |= _norm("enc.output_norm" if model.architecture == "neo-bert" else "output_norm", hidden)
    if model.labels:
        shapes |= _classifier(model)
    if model.dense_size:
        shapes |= {"dense_2.weight": (model.dense_size, hidden), "dense_3.weight": (hidden, model.dense_size)}
    return shapes


def _classifier(model: TinyEncoder) -> Shapes:
    hidden = model.hidden_size
    if model.architecture == "jina-bert-v2":
        return {"cls.weight": (1, hidden), "cls.bias": (1,)}
    shapes: Shapes = {"cls.weight": (hidden, hidden), "cls.output.weight": (model.labels, hidden)}
    if model.architecture == "modern-bert":
        return shapes | _norm("cls.norm", hidden)
    return shapes | {"cls.bias": (hidden,), "cls.output.bias": (model.labels,)}


def _norm(stem: str, size: int, *, has_bias: bool = False) -> Shapes:
    return {f"{stem}.weight": (size,), **({f"{stem}.bias": (size,)} if has_bias else {})}


def _layer(model: TinyEncoder, index: int) -> Shapes:
    hidden, heads, kv_heads = model.hidden_size, *(n * model.head_size for n in (model.num_heads, model.num_kv_heads))
    shapes: Shapes = {"attn_output.weight": (hidden, heads)}
    if model.architecture in ("nomic-bert", "nomic-bert-moe", "jina-bert-v3", "modern-bert", "neo-bert"):
        shapes["attn_qkv.weight"] = (heads + 2 * kv_heads, hidden)
    else:
        shapes |= {"attn_q.weight": (heads, hidden), "attn_k.weight": (kv_heads, hidden)}
        shapes |= {"attn_v.weight": (kv_heads, hidden)}
    if model.architecture in POST_NORMS:
        shapes |= _norm("attn_output_norm", hidden, has_bias=True) | _norm("layer_output_norm", hidden, has_bias=True)
    else:
        norms = ("ffn_norm",) if model.architecture == "modern-bert" and index == 0 else ("attn_norm", "ffn_norm")
        for norm in norms:
            shapes |= _norm(norm, hidden)
    if model.architecture in ("bert", "jina-bert-v2"):
        shapes |= {f"attn_{part}.bias": (heads,) for part in "qkv"} | {"attn_output.bias": (hidden,)}
    if model.architecture == "gemma-embedding":
        shapes |= _norm("attn_q_norm", model.head_size) | _norm("attn_k_norm", model.head_size)
        shapes |= _norm("post_attention_norm", hidden) | _norm("post_ffw_norm", hidden)
    return shapes | _feed_forward(model, index)


def _feed_forward(model: TinyEncoder, index: int) -> Shapes:
    hidden, inner, architecture = model.hidden_size, model.feed_forward_size, model.architecture
    if model.num_experts and index % 2:
        return {
            "ffn_gate_inp.weight": (model.num_experts, hidden),
            "ffn_up_exps.weight": (model.num_experts, inner, hidden),
            "ffn_down_exps.weight": (model.num_experts, hidden, inner),
        }
    shapes: Shapes = {"ffn_down.weight": (hidden, inner)}
    is_fused = architecture in ("modern-bert", "neo-bert") or (architecture == "jina-bert-v2" and not model.has_gate)
    shapes["ffn_up.weight"] = (2 * inner if is_fused else inner, hidden)
    is_gated = architecture in ("nomic-bert", "gemma-embedding", "eurobert") or architecture == "jina-bert-v2"
    if is_gated and not is_fused:
        shapes["ffn_gate.weight"] = (inner, hidden)
    if architecture in ("bert", "nomic-bert-moe", "jina-bert-v3"):
        shapes |= {"ffn_up.bias": (inner,), "ffn_down.bias": (hidden,)}
    if architecture == "jina-bert-v2":
        shapes |= {"ffn_down.bias": (hidden,)}
    return shapes
