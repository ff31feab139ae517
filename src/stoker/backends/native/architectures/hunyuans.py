"""Hunyuan: a llama with NeoX-style RoPE (halves), and norms over heads after RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import (
    DIVISORS,
    head_norms,
    layer,
    plain_decoder,
    rope,
    sectioned_rope,
)
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import HeadNorms, RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_hunyuan_dense(model: Hyperparameters) -> DecoderSpec:
    """Hunyuan, dense."""
    if model.lists("rope.dimension_sections"):
        model.refuse("it rotates along several axes, as models that see do")
    rotation = rope(model, RopePairs.HALVES, base=_base(model), divisors=DIVISORS)
    return plain_decoder(model, rotation, _layer, divisors=DIVISORS)


def describe_hunyuan_vl(model: Hyperparameters) -> DecoderSpec:
    """Hunyuan VL and OCR as text models. A hunyuan-dense with M-RoPE, which for text equals RoPE."""
    if not model.lists("rope.dimension_sections"):
        return describe_hunyuan_dense(model)
    rotation = sectioned_rope(model, is_interleaved=False, base=_base(model))
    return plain_decoder(model, rotation, _layer, divisors=DIVISORS)


def describe_hunyuan_moe(model: Hyperparameters) -> DecoderSpec:
    """Hunyuan A13B. Experts and a shared expert."""

    def make(model: Hyperparameters, index: int) -> Layer:
        size = model.feed_forward_sizes[index]
        return expert_layer(
            model,
            index,
            size=size,
            shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0) or size,
            routing={"is_normalised": True},
            **head_norms(model, index, HeadNorms.AFTER_ROPE),
        )

    return plain_decoder(model, RopePairs.HALVES, make, divisors=DIVISORS)


def _base(model: Hyperparameters) -> float:
    """The base of RoPE, increased if `rope.scaling.alpha` stretches the context."""
    base, alpha, dim = model.rope_base(), model.optional_number("rope.scaling.alpha"), model.head_size
    return base if alpha is None else base * alpha ** (dim / (dim - 2))


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(model, index, **head_norms(model, index, HeadNorms.AFTER_ROPE))
