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
HYBRID_KEYS: Mapping[str, Mapping[str, Any]] = {
    "lfm2": {"shortconv.l_cache": 3},
    "lfm2moe": {"shortconv.l_cache": 3, "expert_gating_func": 2},
    "qwen35": {**DELTA_KEYS, "rope.dimension_sections": [3, 3, 2, 0]},
    "qwen35moe": {**DELTA_KEYS, "rope.dimension_sections": [3, 3, 2, 0]},
    "qwen3next": DELTA_KEYS,
}


_FLOATS = ("shortconv.conv.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "ssm_norm.weight")


BY_KV_HEADS = ("lfm2", "lfm2moe")
"""In which layers without heads of keys and values have no attention: by default each other one."""


def is_mixer_float(name: str) -> bool:
    """Whether a tensor is one that is never quantised."""
    return name.endswith(_FLOATS)


def mixer_shapes(model: TinyModel, index: int) -> Shapes | None:
    """The tensors of a layer's mixer; None if that is plain attention."""
    if model.architecture not in HYBRID_KEYS:
        return None
    if model.architecture.startswith("lfm2"):
        return _short_conv(model, index)
    if model.architecture.startswith("qwen3"):
        return (
            _gated_attention(model)
            if (index + 1) % model.own_key("full_attention_interval") == 0
            else _delta_net(model)
        )
    return None


def _short_conv(model: TinyModel, index: int) -> Shapes | None:
    hidden = model.hidden_size
    if model.heads_of(index)[1]:
        return None
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
    return [
        *gates,
        ("attn_qkv.weight", (2 * keys + values, hidden)),
        ("attn_gate.weight", (values, hidden)),
        ("ssm_conv1d.weight", (2 * keys + values, model.own_key("ssm.conv_kernel"))),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (heads,)),
        ("ssm_norm.weight", (model.own_key("ssm.state_size"),)),
        ("ssm_out.weight", (hidden, values)),
    ]
