"""gemma4: layers with a window have smaller heads; values are normalized; the smallest models have inputs for each
layer and layers that share keys and values; the MoE model has experts and a dense feed-forward.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from stoker.backends.native.architectures.common import (
    DIVISORS,
    decoder,
    head_norms,
    layer_between_norms,
    layers,
    rope,
)
from stoker.backends.native.architectures.experts import expert_size, experts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Experts, Injection, Linear, Norm
from stoker.backends.native.spec import Activation, DecoderSpec, Layer, LayerInputs

_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""
_SCALE = "layer_output_scale.weight"


def describe_gemma4(model: Hyperparameters) -> DecoderSpec:
    """The text part of Gemma 4."""
    full_dim, window_dim = model.rope_dims()
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return decoder(
        model,
        activation=Activation.GELU_TANH,
        attention_scale=1.0,
        embedding_scale=sqrt(model.hidden_size),
        logit_softcap=model.optional_number("final_logit_softcapping") or 0.0,
        ropes=(
            rope(model, RopePairs.HALVES, dim=full_dim, divisors=DIVISORS),
            rope(model, RopePairs.HALVES, dim=window_dim, base=window_base),
        ),
        layers=layers(model, _layer),
        layer_inputs=layer_inputs(model),
        unused=_unused(model),
    )


def _unused(model: Hyperparameters) -> frozenset[str]:
    """Tensors whose content the description has, and keys and values of layers that share those of other layers."""
    shared = range(_first_shared(model), model.num_layers)
    keys = {f"blk.{index}.attn_{part}.weight" for index in shared for part in ("k", "v", "k_norm")}
    return frozenset({DIVISORS} | keys | {f"blk.{index}.{_SCALE}" for index in range(model.num_layers)})


def _is_windowed(model: Hyperparameters) -> list[bool]:
    flags = model.flags_of_layers("attention.sliding_window_pattern")
    return flags if flags is not None else model.fail("it does not list which layers have a window")


def _first_shared(model: Hyperparameters) -> int:
    """Index of the first layer without keys and values of its own."""
    return model.num_layers - model.integer("attention.shared_kv_layers", 0, low=0, high=model.num_layers)


def _layer(model: Hyperparameters, index: int) -> Layer:
    block, is_windowed = f"blk.{index}", _is_windowed(model)[index]
    more: dict[str, Any] = {
        **head_norms(model, index),
        **_keys(model, index),
        **injection(model, index),
        "norms_values": True,
        "output_scale": model.scalar(f"{block}.{_SCALE}", 1.0),
        "rope": _WINDOW if is_windowed else _EVERYTHING,
        "window": model.integer("attention.sliding_window", high=2**31 - 1) if is_windowed else None,
        "experts": _experts(model, index) if model.has(f"{block}.ffn_gate_inp.weight") else None,
    }
    return layer_between_norms(model, index, **more)


def _keys(model: Hyperparameters, index: int) -> dict[str, Any]:
    """What is special about keys and values, as fields of `Layer`."""
    block, heads = f"blk.{index}", model.heads[index]
    first = _first_shared(model)
    if index >= first:
        return shared_keys(model, index, first, _is_windowed(model))
    if model.has(f"{block}.attn_v.weight"):
        return {}
    return {"value": model.linear(f"{block}.attn_k", heads.num_kv * heads.size, model.hidden_size)}


def shared_keys(model: Hyperparameters, index: int, first: int, is_windowed: list[bool]) -> dict[str, Any]:
    """Keys and values of a layer from `first` on, as fields of `Layer`: those of the last layer before `first` with
    an equal window.
    """
    source = first - (2 if is_windowed[index] else 1)
    if source < 0 or is_windowed[source] != is_windowed[index] or model.heads[source] != model.heads[index]:
        model.fail(f"layer {index} shares the keys and values of none that is like it")
    return {"kv_layer": source, "key": None, "value": None, "key_norm": None}


def layer_inputs(model: Hyperparameters) -> LayerInputs | None:
    """The inputs for each layer; None = the file has none. They are sums of two terms, each scaled by √½."""
    size = model.integer("embedding_length_per_layer_input", 0, low=0)
    if not size:
        return None
    if size % 32:
        model.refuse(f"inputs of {size} elements for each layer (multiples of 32 can)")
    all_layers = size * model.num_layers
    return LayerInputs(
        size=size,
        table=Linear(weight="per_layer_token_embd.weight", num_rows=model.vocab_size, num_columns=all_layers),
        projection=model.linear("per_layer_model_proj", all_layers, model.hidden_size),
        norm=model.norm("per_layer_proj_norm", size, scale=sqrt(0.5)),
        norm_eps=model.norm_eps * model.hidden_size,
        table_scale=sqrt(size / 2),
    )


def injection(model: Hyperparameters, index: int) -> dict[str, Any]:
    """How a layer adds its input, as fields of `Layer`."""
    size, hidden, block = model.integer("embedding_length_per_layer_input", 0, low=0), model.hidden_size, f"blk.{index}"
    if not size:
        return {}
    described = Injection(
        gate=model.linear(f"{block}.inp_gate", size, hidden),
        output=model.linear(f"{block}.proj", hidden, size),
        norm=model.norm(f"{block}.post_norm"),
    )
    return {"injection": described}


def _experts(model: Hyperparameters, index: int) -> Experts:
    """Experts beside the dense feed-forward, with separate norms before and after them and before the router."""
    block, hidden, count = f"blk.{index}", model.hidden_size, model.num_experts
    scales = f"{block}.ffn_down_exps.scale"
    return experts(
        model,
        index,
        size=expert_size(model),
        is_normalised=True,
        router_norm=Norm(weight=f"{block}.ffn_gate_inp.scale", size=hidden, scale=hidden**-0.5),
        norm=model.norm(f"{block}.pre_ffw_norm_2"),
        block_norm=model.norm(f"{block}.post_ffw_norm_1"),
        post_norm=model.norm(f"{block}.post_ffw_norm_2"),
        output_scales=model.vector(scales, count) if model.has(scales) else None,
    )
