"""gemma: Gemma 1. A llama with GELU, a scaled embedding and rotated halves."""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import Activation, DecoderSpec, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The converter has already added 1 to the weights of all norms."""
    rope = scaled_rope(
        pairs=RopePairs.HALVES,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=model.rope_scaling(),
    )
    return decoder(
        model,
        architecture="gemma",
        activation=Activation.GELU_TANH,
        embedding_scale=sqrt(model.hidden_size),
        ropes=(rope,),
        layers=tuple(layer(model, index) for index in range(model.num_layers)),
    )
