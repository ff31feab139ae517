"""The shapes of model families that are not plain Llamas: own metadata and tensors, as llama.cpp reads them.

Some are cut to fewer layers, so that a file takes less than 3 GB; the layers themselves have their real size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

Tensor = tuple[str, tuple[int, ...]]
"""Name and shape, rows first; of one dimension and of those that `is_float` names, the elements are floats."""

_FLOATS = (
    "ffn_gate_inp",
    "ssm_conv1d",
    "shortconv.conv",
    "ssm_a",
    "ssm_d",
    "ssm_norm",
    "exps.bias",
    "position_embd",
    "token_types",
    "_coef",
)


@dataclass(frozen=True, slots=True)
class Family:
    """What to write besides the tokenizer and the embedding."""

    architecture: str
    hidden: int
    keys: Mapping[str, Any]
    """Own keys of the architecture, without its name, and keys of the tokenizer; `embedding_length` is not there."""
    tensors: tuple[Tensor, ...]
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of matrices with such a part in their name, where it is not a matter of choice."""
    has_output_norm: bool = True
    has_embedding: bool = True
    num_drafted_tokens: int = 0
    """First tokens of a vocabulary that a file which drafts has; 0 = it has no list of them."""


def is_float(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is never quantised."""
    return len(shape) == 1 or any(part in name for part in _FLOATS)


def family(name: str) -> Family:
    """One of `FAMILIES`."""
    return FAMILIES[name]()


def _blocks(count: int, make: Any) -> tuple[Tensor, ...]:
    return tuple((f"blk.{index}.{name}", shape) for index in range(count) for name, shape in make(index))


def _attention(hidden: int, queries: int, keys: int) -> list[Tensor]:
    return [
        ("attn_q.weight", (queries, hidden)),
        ("attn_k.weight", (keys, hidden)),
        ("attn_v.weight", (keys, hidden)),
    ]


def _dense(hidden: int, inner: int, suffix: str = "") -> list[Tensor]:
    up = [(f"ffn_{part}{suffix}.weight", (inner, hidden)) for part in ("gate", "up")]
    return [*up, (f"ffn_down{suffix}.weight", (hidden, inner))]


def _experts(hidden: int, count: int, inner: int) -> list[Tensor]:
    up = [(f"ffn_{part}_exps.weight", (count, inner, hidden)) for part in ("gate", "up")]
    return [("ffn_gate_inp.weight", (count, hidden)), *up, ("ffn_down_exps.weight", (count, hidden, inner))]


def _norms(hidden: int, *names: str) -> list[Tensor]:
    return [(f"{name}.weight", (hidden,)) for name in names]


def _usual(layers: int, heads: int, kv_heads: Any, head: int, inner: int) -> dict[str, Any]:
    return {
        "block_count": layers,
        "context_length": 32768,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": head,
        "rope.freq_base": 1e6,
    }


def _qwen35(
    architecture: str,
    layers: int,
    hidden: int,
    inner: int,
    heads: int,
    kv_heads: int,
    value_heads: int,
    drafts: int = 0,
) -> Family:
    """Three layers of gated delta nets to one with attention, whose queries have a gate each; then draft heads."""
    head, state, key_heads = 256, 128, 16
    keys, values = key_heads * state, value_heads * state
    has_experts = architecture == "qwen35moe"

    def layer(index: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "post_attention_norm")
        if index >= layers:
            yield from _norms(hidden, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
            yield "nextn.eh_proj.weight", (hidden, 2 * hidden)
        if index % 4 == 3 or index >= layers:
            yield from _attention(hidden, 2 * heads * head, kv_heads * head)
            yield "attn_output.weight", (hidden, heads * head)
            yield from _norms(head, "attn_q_norm", "attn_k_norm")
        else:
            yield "attn_qkv.weight", (2 * keys + values, hidden)
            yield "attn_gate.weight", (values, hidden)
            yield "ssm_conv1d.weight", (2 * keys + values, 4)
            yield "ssm_dt.bias", (value_heads,)
            yield "ssm_a", (value_heads,)
            yield "ssm_beta.weight", (value_heads, hidden)
            yield "ssm_alpha.weight", (value_heads, hidden)
            yield from _norms(state, "ssm_norm")
            yield "ssm_out.weight", (hidden, values)
        if has_experts:
            yield from _experts(hidden, 256, inner)
            yield "ffn_gate_inp_shexp.weight", (hidden,)
            yield from _dense(hidden, inner, "_shexp")
        else:
            yield from _dense(hidden, inner)

    experts = {
        "expert_count": 256,
        "expert_used_count": 8,
        "expert_feed_forward_length": inner,
        "expert_shared_feed_forward_length": inner,
    }
    own = {
        "rope.dimension_count": 64,
        "rope.freq_base": 1e7,
        "rope.dimension_sections": [11, 11, 10, 0],
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": state,
        "ssm.group_count": key_heads,
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": values,
    }
    own |= {"nextn_predict_layers": drafts} if drafts else {}
    all_keys = _usual(layers + drafts, heads, kv_heads, head, inner) | own | (experts if has_experts else {})
    return Family(architecture, hidden, all_keys, _blocks(layers + drafts, layer))


def _qwen3moe() -> Family:
    """Qwen3 30B-A3B, 6 of its 48 layers."""
    hidden, layers, heads, kv_heads, head, inner = 2048, 6, 32, 4, 128, 768

    def layer(_: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "ffn_norm")
        yield from _attention(hidden, heads * head, kv_heads * head)
        yield "attn_output.weight", (hidden, heads * head)
        yield from _norms(head, "attn_q_norm", "attn_k_norm")
        yield from _experts(hidden, 128, inner)

    own = {"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": inner}
    return Family("qwen3moe", hidden, _usual(layers, heads, kv_heads, head, 6144) | own, _blocks(layers, layer))


def _llama4() -> Family:
    """Llama 4 Scout, 4 of its 48 layers with 8 of its 16 experts; a row is computed with one of them, as there."""
    hidden, layers, heads, kv_heads, head, count, inner = 5120, 4, 40, 8, 128, 8, 8192

    def layer(_: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "ffn_norm")
        yield from _attention(hidden, heads * head, kv_heads * head)
        yield "attn_output.weight", (hidden, heads * head)
        yield from _experts(hidden, count, inner)
        yield from _dense(hidden, inner, "_shexp")

    own = {
        "expert_count": count,
        "expert_used_count": 1,
        "expert_feed_forward_length": inner,
        "interleave_moe_layer_step": 1,
        "rope.freq_base": 5e5,
    }
    return Family("llama4", hidden, _usual(layers, heads, kv_heads, head, 16384) | own, _blocks(layers, layer))


def _gpt_oss() -> Family:
    """gpt-oss 20b, 4 of its 24 layers."""
    hidden, layers, heads, kv_heads, head, count = 2880, 4, 64, 8, 64, 32

    def layer(_: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "post_attention_norm")
        yield from _attention(hidden, heads * head, kv_heads * head)
        yield "attn_output.weight", (hidden, heads * head)
        for part, size in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head), ("output", hidden)):
            yield f"attn_{part}.bias", (size,)
        yield "attn_sinks.weight", (heads,)
        yield from _experts(hidden, count, hidden)
        yield "ffn_gate_inp.bias", (count,)
        for part in ("gate", "up", "down"):
            yield f"ffn_{part}_exps.bias", (count, hidden)

    own = {
        "expert_count": count,
        "expert_used_count": 4,
        "expert_feed_forward_length": hidden,
        "attention.sliding_window": 128,
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }
    tensors = (*_blocks(layers, layer), ("output.weight", (0, hidden)))
    return Family("gpt-oss", hidden, _usual(layers, heads, kv_heads, head, hidden) | own, tensors, {"_exps": "MXFP4"})


def _lfm2() -> Family:
    """LFM2 1.2B: short convolutions, and attention in each layer that has KV heads."""
    hidden, layers, heads, head, inner = 2048, 16, 32, 64, 8192
    kv_heads = [8 if index in (2, 5, 8, 10, 12, 14) else 0 for index in range(layers)]

    def layer(index: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "ffn_norm")
        yield from _dense(hidden, inner)
        if kv_heads[index]:
            yield from _attention(hidden, hidden, kv_heads[index] * head)
            yield "attn_output.weight", (hidden, hidden)
            yield from _norms(head, "attn_q_norm", "attn_k_norm")
        else:
            yield "shortconv.conv.weight", (hidden, 3)
            yield "shortconv.in_proj.weight", (3 * hidden, hidden)
            yield "shortconv.out_proj.weight", (hidden, hidden)

    keys = _usual(layers, heads, kv_heads, head, inner) | {"shortconv.l_cache": 3}
    tensors = (*_blocks(layers, layer), ("token_embd_norm.weight", (hidden,)))
    return Family("lfm2", hidden, keys, tensors, has_output_norm=False)


def _granitehybrid() -> Family:
    """Granite 4.0 H 1B: Mamba 2 with attention in a few layers."""
    hidden, layers, heads, head, inner, state, ssm_heads = 1536, 40, 12, 128, 4096, 128, 48
    kv_heads = [4 if index in (5, 15, 25, 35) else 0 for index in range(layers)]
    wide = 2 * hidden

    def layer(index: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "ffn_norm")
        yield from _dense(hidden, inner)
        if kv_heads[index]:
            yield from _attention(hidden, heads * head, kv_heads[index] * head)
            yield "attn_output.weight", (hidden, heads * head)
        else:
            yield "ssm_in.weight", (2 * wide + 2 * state + ssm_heads, hidden)
            yield "ssm_conv1d.weight", (wide + 2 * state, 4)
            yield "ssm_conv1d.bias", (wide + 2 * state,)
            yield "ssm_dt.bias", (ssm_heads,)
            yield "ssm_a", (ssm_heads, 1)
            yield "ssm_d", (ssm_heads, 1)
            yield "ssm_norm.weight", (1, wide)
            yield "ssm_out.weight", (hidden, wide)

    own = {
        "ssm.conv_kernel": 4,
        "ssm.state_size": state,
        "ssm.group_count": 1,
        "ssm.time_step_rank": ssm_heads,
        "ssm.inner_size": wide,
        "logit_scale": 6.0,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "attention.scale": 0.0078125,
        "rope.scaling.finetuned": False,
    }
    return Family("granitehybrid", hidden, _usual(layers, heads, kv_heads, head, inner) | own, _blocks(layers, layer))


def _gemma4() -> Family:
    """Gemma 4 E2B: heads of two sizes, layers that share KV, and an embedding for each layer."""
    hidden, layers, heads, kv_heads, small, large, own_size = 1536, 35, 8, 1, 256, 512, 256
    windows = [(index + 1) % 5 != 0 for index in range(layers)]
    shared = 20
    inner = [6144 if index < layers - shared else 12288 for index in range(layers)]

    def layer(index: int) -> Iterator[Tensor]:
        head = small if windows[index] else large
        yield from _norms(hidden, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        yield "attn_q.weight", (heads * head, hidden)
        yield "attn_output.weight", (hidden, heads * head)
        yield from _norms(head, "attn_q_norm", "attn_k_norm")
        yield "attn_k.weight", (kv_heads * head, hidden)
        yield "attn_v.weight", (kv_heads * head, hidden)
        yield from _dense(hidden, inner[index])
        yield "layer_output_scale.weight", (1,)
        yield "inp_gate.weight", (own_size, hidden)
        yield "proj.weight", (hidden, own_size)

    own = {
        "feed_forward_length": inner,
        "attention.key_length_swa": small,
        "attention.value_length_swa": small,
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": windows,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": own_size,
        "rope.dimension_count_swa": small,
        "rope.freq_base_swa": 10000.0,
        "final_logit_softcapping": 30.0,
    }
    tensors = (
        *_blocks(layers, layer),
        ("per_layer_token_embd.weight", (0, own_size * layers)),
        ("per_layer_model_proj.weight", (own_size * layers, hidden)),
        ("per_layer_proj_norm.weight", (own_size,)),
        ("rope_freqs.weight", (large // 2,)),
    )
    return Family("gemma4", hidden, _usual(layers, heads, kv_heads, large, 6144) | own, tensors)


def _gemma3n() -> Family:
    """Gemma 3n E2B: four streams, a part of low rank, an embedding for each layer, and layers that share KV."""
    hidden, layers, heads, kv_heads, head, inner, own_size, rank = 2048, 30, 8, 2, 256, 8192, 256, 64
    streams, shared, cut = 4, 10, 10

    def layer(_: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
        yield from _norms(hidden, "laurel_post_norm", "altup_router_norm")
        yield from _norms(head, "attn_q_norm", "attn_k_norm")
        yield from _attention(hidden, heads * head, kv_heads * head)
        yield "attn_output.weight", (hidden, heads * head)
        yield from _dense(hidden, inner)
        yield "inp_gate.weight", (own_size, hidden)
        yield "proj.weight", (hidden, own_size)
        yield "laurel_l.weight", (rank, hidden)
        yield "laurel_r.weight", (hidden, rank)
        yield "altup_router.weight", (streams, hidden)
        yield "altup_predict_coef.weight", (streams**2, streams)
        yield "altup_correct_coef.weight", (streams, streams)
        yield "altup_correct_scale.weight", (hidden,)

    own = {
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": [(index + 1) % 5 != 0 for index in range(layers)],
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": own_size,
        "altup.active_idx": 0,
        "altup.num_inputs": streams,
        "activation_sparsity_scale": [1.6448533535003662 if index < cut else -inf for index in range(layers)],
        "final_logit_softcapping": 30.0,
    }
    squares = (streams - 1, hidden, hidden)
    tensors = (
        *_blocks(layers, layer),
        ("altup_proj.weight", squares),
        ("altup_unembd_proj.weight", squares),
        ("per_layer_token_embd.weight", (0, own_size * layers)),
        ("per_layer_model_proj.weight", (own_size * layers, hidden)),
        ("per_layer_proj_norm.weight", (own_size,)),
    )
    halves: dict[str, str] = dict.fromkeys(
        ("laurel_", "router", "altup_proj", "altup_unembd", "per_layer_model_proj"), "F16"
    )
    return Family("gemma3n", hidden, _usual(layers, heads, kv_heads, head, inner) | own, tensors, halves)


def _latent() -> Family:
    """GLM 4.7 Flash, 4 of its 47 layers: one latent vector of each position for all heads."""
    hidden, layers, heads, rank, queries, rotated, plain, value = 2048, 4, 20, 512, 768, 64, 192, 256
    count, inner = 64, 1536

    def layer(index: int) -> Iterator[Tensor]:
        yield from _norms(hidden, "attn_norm", "ffn_norm")
        yield "attn_q_a.weight", (queries, hidden)
        yield from _norms(queries, "attn_q_a_norm")
        yield "attn_q_b.weight", (heads * (plain + rotated), queries)
        yield "attn_kv_a_mqa.weight", (rank + rotated, hidden)
        yield from _norms(rank, "attn_kv_a_norm")
        yield "attn_k_b.weight", (heads, rank, plain)
        yield "attn_v_b.weight", (heads, value, rank)
        yield "attn_output.weight", (hidden, heads * value)
        if index == 0:
            yield from _dense(hidden, 10240)
        else:
            yield from _experts(hidden, count, inner)
            yield "exp_probs_b.bias", (count,)
            yield from _dense(hidden, inner, "_shexp")

    own = {
        "attention.value_length": rank,
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": value,
        "attention.q_lora_rank": queries,
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated,
        "leading_dense_block_count": 1,
        "expert_count": count,
        "expert_used_count": 4,
        "expert_shared_count": 1,
        "expert_feed_forward_length": inner,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.8,
        "expert_gating_func": 2,
    }
    return Family("deepseek2", hidden, _usual(layers, heads, 1, rank + rotated, 10240) | own, _blocks(layers, layer))


def _bert() -> Family:
    """BERT base, as most embedding models."""
    hidden, layers, inner, context = 768, 12, 3072, 512

    def layer(_: int) -> Iterator[Tensor]:
        for name, rows, columns in (
            ("attn_q", hidden, hidden),
            ("attn_k", hidden, hidden),
            ("attn_v", hidden, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            yield f"{name}.weight", (rows, columns)
            yield f"{name}.bias", (rows,)
        for name in ("attn_output_norm", "layer_output_norm"):
            yield f"{name}.weight", (hidden,)
            yield f"{name}.bias", (hidden,)

    own = {
        "context_length": context,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "pooling_type": 1,
        "tokenizer.ggml.token_type_count": 2,
    }
    tensors = (
        *_blocks(layers, layer),
        ("position_embd.weight", (context, hidden)),
        ("token_types.weight", (2, hidden)),
        ("token_embd_norm.weight", (hidden,)),
        ("token_embd_norm.bias", (hidden,)),
    )
    return Family("bert", hidden, _usual(layers, 12, 12, 64, inner) | own, tensors, has_output_norm=False)


FAMILIES = {
    "qwen35-0.8b": lambda: _qwen35("qwen35", 24, 1024, 3584, 8, 2, 16, 0),
    "qwen35-0.8b-mtp": lambda: _qwen35("qwen35", 24, 1024, 3584, 8, 2, 16, 1),
    "qwen35-4b": lambda: _qwen35("qwen35", 32, 2560, 9216, 16, 4, 32, 0),
    "qwen35moe": lambda: _qwen35("qwen35moe", 4, 2048, 512, 16, 2, 32, 0),
    "qwen3moe": _qwen3moe,
    "gpt-oss": _gpt_oss,
    "gemma3n-e2b": _gemma3n,
    "gemma4-e2b": _gemma4,
    "glm47-flash": _latent,
    "granitehybrid": _granitehybrid,
    "lfm2": _lfm2,
    "llama4": _llama4,
    "bert": _bert,
}
