"""minicpm: MiniCPM 1, 2 and 4, dense. A llama with scales of embedding, residuals and logits."""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import DIVISORS, layers, rope, scaled_decoder
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec

_EMBEDDING_SCALE, _DEPTH_SCALE, _BASE_SIZE = 12.0, 1.4, 256
"""Of all models of this family; old files do not say."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return scaled_decoder(
        model,
        embedding_scale=model.number("embedding_scale", _EMBEDDING_SCALE),
        residual_scale=model.number("residual_scale", _DEPTH_SCALE / sqrt(model.num_layers)),
        logit_divisor=model.number("logit_scale", _BASE_SIZE / model.hidden_size),
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model),
        unused=frozenset({DIVISORS}),
    )
