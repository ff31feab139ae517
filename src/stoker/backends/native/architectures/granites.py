"""Granite: a llama with scales of embedding, attention scores, residuals and logits."""

from __future__ import annotations

from math import sqrt
from typing import Any

from stoker.backends.native.architectures.common import DIVISORS, Make, layer, layers, rope, scaled_decoder
from stoker.backends.native.architectures.experts import expert_parts
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import Rope, no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes` of a model with windows; `_STANDS`: no rotation."""


def describe_granite(model: Hyperparameters) -> DecoderSpec:
    """Granite 3 and 4, dense."""
    return _decoder(model, layer)


def describe_granitemoe(model: Hyperparameters) -> DecoderSpec:
    """Granite 3 with experts. Some models also have a shared expert."""

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, **_experts(model, index))

    return _decoder(model, make)


def describe_granitehybrid(model: Hyperparameters) -> DecoderSpec:
    """Granite 4 H. Layers without heads of keys are Mamba 2; with or without experts."""

    def make(model: Hyperparameters, index: int) -> Layer:
        mixer = {} if model.heads[index].num_kv else mamba2(model, index)
        return layer(model, index, **mixer, **(_experts(model, index) if model.num_experts else {}))

    return _decoder(model, make)


def describe_granite_swa(model: Hyperparameters) -> DecoderSpec:
    """Granite with sliding windows. Attention sinks; with or without experts. The file lists the layers with a window
    and those with RoPE.
    """
    return _decoder(model, _windowed_layer, no_rope(RopePairs.ADJACENT, model.rope_dim()))


def _windowed_layer(model: Hyperparameters, index: int) -> Layer:
    is_windowed = model.flags_of_layers("attention.sliding_window_pattern")
    if is_windowed is None:
        model.fail("it does not list which layers have a window")
    rotates = model.flags_of_layers("attention.rope_pattern")
    return layer(
        model,
        index,
        sinks=model.norm(f"blk.{index}.attn_sinks", model.heads[index].num),
        rope=_ROTATES if rotates is None or rotates[index] else _STANDS,
        window=model.integer("attention.sliding_window", high=2**31 - 1) if is_windowed[index] else None,
        **(_experts(model, index) if model.num_experts else {}),
    )


def _experts(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The experts and, if there is one, the shared expert of a layer, as fields of `Layer`."""
    return expert_parts(
        model,
        index,
        size=model.feed_forward_sizes[index],
        shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0),
        routing={"is_normalised": True},
    )


def _decoder(model: Hyperparameters, make: Make, *more_ropes: Rope) -> DecoderSpec:
    return scaled_decoder(
        model,
        embedding_scale=model.optional_number("embedding_scale") or 1.0,
        residual_scale=model.optional_number("residual_scale") or 1.0,
        logit_divisor=model.number("logit_scale"),
        attention_scale=model.optional_number("attention.scale") or 1 / sqrt(model.head_size),
        ropes=(_rope(model), *more_ropes),
        layers=layers(model, make),
        unused=frozenset({DIVISORS}),
    )


def _rope(model: Hyperparameters) -> Rope:
    """The RoPE. Models without position encoding have the key `rope.scaling.finetuned` = false."""
    if not model.flag("rope.scaling.finetuned", default=True):
        return no_rope(RopePairs.ADJACENT, model.rope_dim())
    return rope(model, RopePairs.ADJACENT, divisors=DIVISORS)
