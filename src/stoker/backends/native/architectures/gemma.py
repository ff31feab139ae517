"""gemma: Gemma 1. A llama with GELU, a scaled embedding and NeoX-style RoPE (halves)."""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import Activation, DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The converter has already added 1 to the weights of all norms."""
    return decoder(
        model,
        activation=Activation.GELU_TANH,
        embedding_scale=sqrt(model.hidden_size),
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model),
    )
