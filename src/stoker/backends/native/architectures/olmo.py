"""olmo: OLMo 1. A llama with layer norms without weights; queries, keys and values may be clamped."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import NormKind, RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    norm = model.plain_norm()
    return decoder(
        model,
        norm=NormKind.LAYER,
        input_limit=model.optional_number("attention.clamp_kqv") or 0.0,
        output_norm=norm,
        ropes=(rope(model, RopePairs.ADJACENT),),
        layers=tuple(
            layer(model, index, attention_norm=norm, feed_forward_norm=norm) for index in range(model.num_layers)
        ),
    )
