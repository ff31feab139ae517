"""hunyuan-moe: Hunyuan A13B. Experts and a shared expert; norms over heads after RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, head_norms, layers, rope
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, HeadNorms, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES, divisors=DIVISORS),),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    size = model.feed_forward_sizes[index]
    return expert_layer(
        model,
        index,
        size=size,
        shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0) or size,
        routing={"is_normalised": True},
        **head_norms(model, index),
        head_norms=HeadNorms.AFTER_ROPE,
    )
