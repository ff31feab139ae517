"""Qwen 3 Next, 3.5 and 3.6: gated delta nets, and gated attention in every fourth layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from stoker.backends.native.architectures.common import layer, layer_with_head_norms, plain_decoder, sectioned_rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.experts import expert_parts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer, RopePairs
from stoker.backends.native.layer_parts import Linear, Recurrence
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
_MAX_TAPS, _MAX_HEADS = 8, 1 << 16

_Mixer: TypeAlias = Callable[[Hyperparameters, int], dict[str, Any]]


def describe_qwen35(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3.5 and 3.6, dense."""
    spec = plain_decoder(model, sectioned_rope(model, is_interleaved=True), _layer)
    return with_draft_head(model, spec, _attention_layer)


def describe_qwen35moe(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3.5 and 3.6 with experts. A qwen35 with experts and a gated shared expert."""

    def make(model: Hyperparameters, index: int) -> Layer:
        return _layer(model, index, **_gated_experts(model, index))

    spec = plain_decoder(model, sectioned_rope(model, is_interleaved=True), make)
    return with_draft_head(model, spec, _further_layer)


def describe_qwen3next(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3 Next. A qwen35moe in which adjacent heads of a delta net share a key, and beta and decay are fused:

    ```
    blk.0.ssm_ba:  [ beta of the heads of key head 0 | their decay | beta of the heads of key head 1 | … ]
    ```
    """

    def make(model: Hyperparameters, index: int) -> Layer:
        return _layer(model, index, _next_delta_net, **_gated_experts(model, index))

    return with_draft_head(model, plain_decoder(model, RopePairs.HALVES, make), _further_layer)


def _attention_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with gated attention; `more`: further fields of `Layer`."""
    more["feed_forward_norm"] = model.norm(f"blk.{index}.post_attention_norm")
    return layer_with_head_norms(model, index, **_gated_queries(model, index), **more)


def _further_layer(model: Hyperparameters, index: int) -> Layer:
    """The layer of a draft head, which always has attention."""
    return _attention_layer(model, index, **_gated_experts(model, index))


def _gated_experts(model: Hyperparameters, index: int) -> dict[str, Any]:
    """Experts with normalized weights and the gated shared expert, as fields of `Layer`."""
    gate = model.linear(f"blk.{index}.ffn_gate_inp_shexp", 1, model.hidden_size)
    shared_size = model.integer("expert_shared_feed_forward_length", model.feed_forward_sizes[index])
    return expert_parts(model, index, shared_size=shared_size, routing={"is_normalised": True, "shared_gate": gate})


def _has_attention(model: Hyperparameters, index: int) -> bool:
    """Whether a layer has attention: as the file lists it, or every `full_attention_interval`-th layer."""
    are_recurrent = model.flags_of_layers("attention.recurrent_layers")
    if are_recurrent is not None:
        return not are_recurrent[index]
    return (index + 1) % model.integer("full_attention_interval", _PERIOD) == 0


def _gated_queries(model: Hyperparameters, index: int) -> dict[str, Any]:
    """Queries and their gates, as fields of `Layer`. They are fused in the file:

    ```
    blk.3.attn_q:  [ rows of query head 0 | of its gate | rows of query head 1 | of its gate | … ]
    ```
    """
    heads, stem = model.heads[index], f"blk.{index}.attn_q"
    query, gate = (
        replace(model.linear(stem, heads.num * heads.size, model.hidden_size, first_row=first), run=heads.size)
        for first in (0, heads.size)
    )
    return {"query": query, "mixed_gate": gate}


def _delta_net(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The parts of a gated delta net, as fields of `Layer`.

    ```
    blk.0.attn_qkv:  [ rows of queries | rows of keys | rows of values ]
    ```

    Args:
        model: the file.
        index: index of the layer.

    Raises:
        ModelFileInvalid: sizes contradict one another.
        ModelUnsupported: the matrices are laid out in another way.
    """
    block, hidden = f"blk.{index}", model.hidden_size
    size, num_keys = model.integer("ssm.state_size"), model.integer("ssm.group_count", high=_MAX_HEADS)
    num_heads, values = model.integer("ssm.time_step_rank", high=_MAX_HEADS), model.integer("ssm.inner_size")
    taps = model.integer("ssm.conv_kernel", low=2, high=_MAX_TAPS)
    if values != num_heads * size or num_heads % num_keys or size % 16 or values % 32:
        model.fail(f"a delta net of {values} elements cannot have {num_heads} heads of {size} and {num_keys} of keys")
    if not model.has(f"{block}.attn_qkv.weight") and not model.has(f"{block}.ssm_in.weight"):
        model.refuse("its delta nets have no tensor for queries, keys and values")
    keys = num_keys * size
    recurrence = Recurrence(
        mixer=Mixer.DELTA_NET,
        taps=taps,
        convolution=model.convolution(f"{block}.ssm_conv1d", taps, 2 * keys + values),
        num_heads=num_heads,
        num_key_heads=num_keys,
        key_size=size,
        value_size=size,
        are_interleaved=True,
        decay=model.linear(f"{block}.ssm_alpha", num_heads, hidden),
        beta=model.linear(f"{block}.ssm_beta", num_heads, hidden),
        step_bias=model.vector(f"{block}.ssm_dt.bias", num_heads),
        decay_rate=model.vector(f"{block}.ssm_a", num_heads),
        norm=model.norm(f"{block}.ssm_norm", size),
        norm_size=size,
        norm_eps=model.norm_eps,
    )
    return {
        "heads": None,
        "recurrence": recurrence,
        "query": model.linear(f"{block}.attn_qkv", keys, hidden),
        "key": model.linear(f"{block}.attn_qkv", keys, hidden, first_row=keys),
        "value": model.linear(f"{block}.attn_qkv", values, hidden, first_row=2 * keys),
        "mixed_gate": model.linear(f"{block}.attn_gate", values, hidden),
        "output": model.linear(f"{block}.ssm_out", hidden, values),
    }


def _layer(model: Hyperparameters, index: int, mixer: _Mixer = _delta_net, **more: Any) -> Layer:
    """A layer with `mixer` (a gated delta net) or with gated attention; `more`: further fields of `Layer`."""
    if _has_attention(model, index):
        return _attention_layer(model, index, **more)
    norm = model.norm(f"blk.{index}.post_attention_norm")
    return layer(model, index, feed_forward_norm=norm, **mixer(model, index), **more)


def _next_delta_net(model: Hyperparameters, index: int) -> dict[str, Any]:
    parts = _delta_net(model, index)
    parts["recurrence"] = _with_gates(model, index, parts["recurrence"])
    if model.has(f"blk.{index}.ssm_in.weight"):
        parts |= _of_old_file(model, index, parts["recurrence"])
    return parts


def _of_old_file(model: Hyperparameters, index: int, of: Recurrence) -> dict[str, Linear]:
    """The matrices of a delta net in an old file, where they are fused:

    ```
    blk.0.ssm_in:  [ query of key head 0 | its key | values of its heads | their gates | query of key head 1 | … ]
    ```
    """
    values = of.num_heads // of.num_key_heads * of.value_size
    sizes = {"query": of.key_size, "key": of.key_size, "value": values, "mixed_gate": values}
    together, first, found = sum(sizes.values()), 0, dict[str, Linear]()
    for name, run in sizes.items():
        rows = model.linear(f"blk.{index}.ssm_in", run * of.num_key_heads, model.hidden_size, first_row=first)
        found[name] = replace(rows, run=run, gap=together - run)
        first += run
    return found


def _with_gates(model: Hyperparameters, index: int, of: Recurrence) -> Recurrence:
    run, stem = of.num_heads // of.num_key_heads, f"blk.{index}.ssm_ba"
    beta, decay = (
        replace(model.linear(stem, of.num_heads, model.hidden_size, first_row=first), run=run) for first in (0, run)
    )
    return replace(of, are_interleaved=False, beta=beta, decay=decay)
