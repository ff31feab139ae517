"""LFM2: short convolutions, and attention in the layers that have heads of keys and values."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import layer, layer_with_head_norms, plain_decoder
from stoker.backends.native.architectures.experts import expert_parts, routing_of
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer, RopePairs, Routing
from stoker.backends.native.layer_parts import Recurrence
from stoker.backends.native.spec import DecoderSpec, Layer

_MAX_TAPS = 8


def describe_lfm2(model: Hyperparameters) -> DecoderSpec:
    """LFM2."""
    return plain_decoder(model, RopePairs.HALVES, _layer, output_norm=model.norm("token_embd_norm"))


def describe_lfm2moe(model: Hyperparameters) -> DecoderSpec:
    """LFM2 with experts. The first layers are dense; experts are chosen with a bias."""
    return plain_decoder(model, RopePairs.HALVES, _expert_layer, output_norm=model.norm("token_embd_norm"))


def _layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with attention or, without heads of keys, a short convolution; `more`: further fields of `Layer`."""
    if model.heads[index].num_kv:
        window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1) or None
        return layer_with_head_norms(model, index, window=window, **more)
    block, hidden = f"blk.{index}.shortconv", model.hidden_size
    taps = model.integer("shortconv.l_cache", low=2, high=_MAX_TAPS)
    b, c, x = (model.linear(f"{block}.in_proj", hidden, hidden, first_row=part * hidden) for part in range(3))
    return layer(
        model,
        index,
        heads=None,
        recurrence=Recurrence(
            mixer=Mixer.SHORT_CONV, taps=taps, convolution=model.convolution(f"{block}.conv", taps, hidden)
        ),
        query=b,
        key=c,
        value=x,
        output=model.linear(f"{block}.out_proj", hidden, hidden),
        **more,
    )


def _expert_layer(model: Hyperparameters, index: int) -> Layer:
    if index < model.integer("leading_dense_block_count", 0, low=0):
        return _layer(model, index, experts=None)
    routing = {
        "routing": routing_of(model, Routing.SIGMOID),
        "is_normalised": True,
        "selection_bias": model.vector(f"blk.{index}.exp_probs_b.bias", model.num_experts),
    }
    return _layer(model, index, **expert_parts(model, index, routing=routing))
