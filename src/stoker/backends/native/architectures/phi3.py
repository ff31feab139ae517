"""Phi 3 and 4: fused matrices, RoPE on a part of each head, and LongRoPE with divisors for short and long contexts.

The sliding window of the 4k models is ignored, as in libllama: their files do not say reliably that they have one, and
it is half of the context.
"""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import (
    LONG_DIVISORS,
    SHORT_DIVISORS,
    Make,
    decoder,
    layer,
    layers,
    long_rope,
)
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import NormKind, RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_phi3(model: Hyperparameters) -> DecoderSpec:
    """Phi 3 and 4."""
    return _decoder(model, layer)


def describe_phimoe(model: Hyperparameters) -> DecoderSpec:
    """Phi 3.5 MoE and Phi mini MoE. A phi3 with experts, and biases in all norms and matrices. Its norms do not
    subtract the mean, as in libllama.
    """
    return _decoder(model, _expert_layer, norm=NormKind.RMS_BIASED, output_norm=model.biased_norm("output_norm"))


def _expert_layer(model: Hyperparameters, index: int) -> Layer:
    block = f"blk.{index}"
    return expert_layer(
        model,
        index,
        size=model.feed_forward_sizes[index],
        routing={"is_normalised": True},
        attention_norm=model.biased_norm(f"{block}.attn_norm"),
        feed_forward_norm=model.biased_norm(f"{block}.ffn_norm"),
    )


def _decoder(model: Hyperparameters, make: Make, **more: Any) -> DecoderSpec:
    ropes, unused = (long_rope(model, RopePairs.HALVES),), frozenset({SHORT_DIVISORS, LONG_DIVISORS})
    return decoder(model, ropes=ropes, layers=layers(model, make), unused=unused, **more)
