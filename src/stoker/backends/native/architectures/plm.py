"""plm: PLM 1.8B. Latent attention (MLA) with one matrix for the keys and values of all heads; a feed-forward without
gate, with squared ReLU.
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
