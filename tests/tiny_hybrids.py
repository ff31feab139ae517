"""What tiny models with recurrent layers have besides: own keys, and the tensors of their mixers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

Shapes = list[tuple[str, tuple[int, ...]]]

TAPS = 4
STATE, KEY_HEADS, VALUE_HEADS = 16, 2, 4
"""Of a delta net: the size of queries, keys and values, and how many heads of each."""

DELTA_KEYS: Mapping[str, Any] = {
    "full_attention_interval": 2,
    "ssm.conv_kernel": TAPS,
    "ssm.state_size": STATE,
    "ssm.group_count": KEY_HEADS,
    "ssm.time_step_rank": VALUE_HEADS,
    "ssm.inner_size": VALUE_HEADS * STATE,
}
MAMBA_KEYS: Mapping[str, Any] = {
    "ssm.conv_kernel": TAPS,
    "ssm.state_size": 32,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 8,
    "ssm.inner_size": 128,
}
GRANITE_KEYS: Mapping[str, Any] = {
    "attention.scale": 0.4,
    "embedding_scale": 3.0,
    "logit_scale": 2.5,
    "residual_scale": 0.4,
}
MAMBA1_KEYS: Mapping[str, Any] = {
    "ssm.conv_kernel": TAPS,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 32,
    "ssm.inner_size": 128,
}
_WITHOUT_HEADS: Mapping[str, Any] = {
    "attention.head_count": 0,
    "attention.head_count_kv": None,
    "attention.key_length": None,
    "attention.value_length": None,
    "rope.dimension_count": None,
    "feed_forward_length": 0,
}
HYBRID_KEYS: Mapping[str, Mapping[str, Any]] = {
    "falcon-h1": MAMBA_KEYS,
    "granitehybrid": {**MAMBA_KEYS, **GRANITE_KEYS},
    "jamba": MAMBA1_KEYS,
    "kimi-linear": {"ssm.conv_kernel": TAPS, "kda.head_dim": 32, "expert_gating_func": 2, "expert_weights_scale": 1.5},
    "mamba": {**MAMBA1_KEYS, **_WITHOUT_HEADS},
    "mamba2": {**MAMBA_KEYS, **_WITHOUT_HEADS},
    "lfm2": {"shortconv.l_cache": 3},
    "lfm2moe": {"shortconv.l_cache": 3, "expert_gating_func": 2},
    "nemotron_h": {**MAMBA_KEYS, "attention.layer_norm_epsilon": 1e-6},
    "nemotron_h_moe": {
        **MAMBA_KEYS,
        "attention.layer_norm_epsilon": 1e-6,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
    },
    "qwen35": {**DELTA_KEYS, "rope.dimension_sections": [3, 3, 2, 0]},
    "qwen35moe": {**DELTA_KEYS, "rope.dimension_sections": [3, 3, 2, 0]},
    "qwen3next": DELTA_KEYS,
}
_CONVOLUTIONS = ("shortconv.conv.weight", *(f"ssm_conv1d{part}.weight" for part in ("", "_q", "_k", "_v")))
_FLOATS = (*_CONVOLUTIONS, "ssm_a", "ssm_d", "ssm_norm.weight")
_BY_KV_HEADS = ("granitehybrid", "jamba", "kimi-linear", "lfm2", "lfm2moe")
_WITHOUT_ATTENTION = ("mamba", "mamba2")
"""In which layers without heads of keys and values have no attention: by default each other one."""
_NEMOTRON = ("attention", "feed-forward", "scan", "scan", "feed-forward")
"""What its layers are in turn."""


def has_attention(model: TinyModel, index: int) -> bool:
    """Whether a layer has heads of keys and values, if nothing is said of its heads."""
    if model.architecture.startswith("nemotron_h"):
        return _NEMOTRON[index % 5] == "attention"
    if model.architecture in _WITHOUT_ATTENTION:
        return False
    return index % 2 == 1 or model.architecture not in _BY_KV_HEADS


def has_feed_forward(model: TinyModel, index: int) -> bool:
    return not model.architecture.startswith("nemotron_h") or _NEMOTRON[index % 5] == "feed-forward"


def is_mixer_float(name: str) -> bool:
    """Whether a tensor is one that is never quantised."""
    return name.endswith(_FLOATS)


def with_mixer(model: TinyModel, index: int, shapes: Shapes) -> Shapes:
    """The tensors of a layer, given those that it would have with plain attention."""
    if model.architecture not in HYBRID_KEYS:
        return shapes
    if model.architecture.startswith("nemotron_h"):
        return _nemotron_block(model, index, shapes)
    if model.architecture in _WITHOUT_ATTENTION:
        mixer = _mamba1(model) if model.architecture == "mamba" else _mamba2(model)
        return [("attn_norm.weight", (model.hidden_size,)), *mixer]
    if model.architecture == "falcon-h1":
        named = [("ffn_norm" if name == "ffn_norm.weight" else name, shape) for name, shape in shapes]
        return named + _mamba2(model)
    mixer = _mixer(model, index)
    return shapes if mixer is None else _without_attention(shapes) + mixer


def _without_attention(shapes: Shapes) -> Shapes:
    return [(name, shape) for name, shape in shapes if not name.startswith("attn_") or name == "attn_norm.weight"]


def _mixer(model: TinyModel, index: int) -> Shapes | None:
    """What a layer has in place of plain attention."""
    if model.architecture.startswith("qwen3"):
        is_attention = (index + 1) % model.own_key("full_attention_interval") == 0
        return _gated_attention(model) if is_attention else _delta_net(model)
    if model.heads_of(index)[1]:
        return None
    if model.architecture == "kimi-linear":
        return kda(model)
    if model.architecture == "jamba":
        return _mamba1(model)
    return _mamba2(model) if model.architecture == "granitehybrid" else _short_conv(model)


def _nemotron_block(model: TinyModel, index: int, shapes: Shapes) -> Shapes:
    """One norm, and one part behind it."""
    gates = ("ffn_norm.weight", "ffn_gate.weight", "ffn_gate_exps.weight", "ffn_gate_shexp.weight")
    if has_feed_forward(model, index):
        return [(name, shape) for name, shape in _without_attention(shapes) if name not in gates]
    plain = [(name, shape) for name, shape in shapes if not name.startswith(("ffn_", "exp_"))]
    return plain if has_attention(model, index) else _without_attention(plain) + _mamba2(model)


def _mamba2(model: TinyModel) -> Shapes:
    hidden, values, heads = model.hidden_size, model.own_key("ssm.inner_size"), model.own_key("ssm.time_step_rank")
    groups = model.own_key("ssm.group_count")
    keys = groups * model.own_key("ssm.state_size")
    return [
        ("ssm_in.weight", (2 * values + 2 * keys + heads, hidden)),
        ("ssm_conv1d.weight", (values + 2 * keys, model.own_key("ssm.conv_kernel"))),
        ("ssm_conv1d.bias", (values + 2 * keys,)),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (heads, 1)),
        ("ssm_d", (heads, 1)),
        ("ssm_norm.weight", (groups, values // groups)),
        ("ssm_out.weight", (hidden, values)),
    ]


def _mamba1(model: TinyModel) -> Shapes:
    hidden, values, size = model.hidden_size, model.own_key("ssm.inner_size"), model.own_key("ssm.state_size")
    rank = model.own_key("ssm.time_step_rank")
    norms = (("dt", rank), ("b", size), ("c", size)) if model.architecture == "jamba" else ()
    return [
        ("ssm_in.weight", (2 * values, hidden)),
        ("ssm_conv1d.weight", (values, model.own_key("ssm.conv_kernel"))),
        ("ssm_conv1d.bias", (values,)),
        ("ssm_x.weight", (rank + 2 * size, values)),
        ("ssm_dt.weight", (values, rank)),
        ("ssm_dt.bias", (values,)),
        *((f"ssm_{name}_norm.weight", (count,)) for name, count in norms),
        ("ssm_a", (values, size)),
        ("ssm_d", (values,)),
        ("ssm_out.weight", (hidden, values)),
    ]


def kda(model: TinyModel) -> Shapes:
    hidden, size, taps = model.hidden_size, model.own_key("kda.head_dim"), model.own_key("ssm.conv_kernel")
    heads = model.num_heads * size
    return [
        *((f"attn_{part}.weight", (heads, hidden)) for part in "qkv"),
        *((f"ssm_conv1d_{part}.weight", (1, heads, 1, taps)) for part in "qkv"),
        *((f"ssm_{part}_a.weight", (size, hidden)) for part in "fg"),
        *((f"ssm_{part}_b.weight", (heads, size)) for part in "fg"),
        ("ssm_beta.weight", (model.num_heads, hidden)),
        ("ssm_a", (model.num_heads, 1)),
        ("ssm_dt.bias", (heads,)),
        ("ssm_norm.weight", (size,)),
        ("attn_output.weight", (hidden, heads)),
    ]


def _short_conv(model: TinyModel) -> Shapes:
    hidden = model.hidden_size
    return [
        ("shortconv.conv.weight", (hidden, model.own_key("shortconv.l_cache"))),
        ("shortconv.in_proj.weight", (3 * hidden, hidden)),
        ("shortconv.out_proj.weight", (hidden, hidden)),
    ]


def _gated_attention(model: TinyModel) -> Shapes:
    hidden, heads, kv_heads = model.hidden_size, *(n * model.head_size for n in (model.num_heads, model.num_kv_heads))
    return [
        ("attn_q.weight", (2 * heads, hidden)),
        ("attn_k.weight", (kv_heads, hidden)),
        ("attn_v.weight", (kv_heads, hidden)),
        ("attn_output.weight", (hidden, heads)),
        *((f"attn_{part}_norm.weight", (model.head_size,)) for part in "qk"),
    ]


def _delta_net(model: TinyModel) -> Shapes:
    hidden, heads = model.hidden_size, model.own_key("ssm.time_step_rank")
    values, keys = (model.own_key("ssm.state_size") * n for n in (heads, model.own_key("ssm.group_count")))
    gates: Shapes = [("ssm_beta.weight", (heads, hidden)), ("ssm_alpha.weight", (heads, hidden))]
    if model.architecture == "qwen3next":
        gates = [("ssm_ba.weight", (2 * heads, hidden))]
    inputs: Shapes = [("attn_qkv.weight", (2 * keys + values, hidden)), ("attn_gate.weight", (values, hidden))]
    if model.is_old:
        inputs = [("ssm_in.weight", (2 * keys + 2 * values, hidden))]
    return [
        *gates,
        *inputs,
        ("ssm_conv1d.weight", (2 * keys + values, model.own_key("ssm.conv_kernel"))),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (heads,)),
        ("ssm_norm.weight", (model.own_key("ssm.state_size"),)),
        ("ssm_out.weight", (hidden, values)),
    ]
