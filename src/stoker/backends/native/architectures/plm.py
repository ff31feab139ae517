"""plm: PLM 1.8B. Keys and values are one latent vector of each position, from which one matrix makes those of all
heads; the feed-forward is a squared ReLU.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer_without_gate, rope
from stoker.backends.native.architectures.latent import Sizes, latent_attention
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import Activation, DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    sizes = Sizes.of_plain_heads(model)
    return decoder(
        model,
        activation=Activation.RELU_SQUARED,
        ropes=(rope(model, RopePairs.ADJACENT, dim=sizes.rotated),),
        layers=tuple(
            layer_without_gate(model, index, **latent_attention(model, index, sizes))
            for index in range(model.num_layers)
        ),
    )
