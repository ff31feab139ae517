"""minicpm: MiniCPM 1, 2 and 4, dense. A llama with scales of embedding, residuals and logits."""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import layer, scaled_decoder
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import DecoderSpec, RopePairs

_EMBEDDING_SCALE, _DEPTH_SCALE, _BASE_SIZE = 12.0, 1.4, 256
"""Of all models of this family; old files do not say."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rope = scaled_rope(
        pairs=RopePairs.ADJACENT,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=model.rope_scaling(),
        divisors=model.rope_divisors("rope_freqs.weight"),
    )
    return scaled_decoder(
        model,
        architecture="minicpm",
        embedding_scale=model.number("embedding_scale", _EMBEDDING_SCALE),
        residual_scale=model.number("residual_scale", _DEPTH_SCALE / sqrt(model.num_layers)),
        logit_divisor=model.number("logit_scale", _BASE_SIZE / model.hidden_size),
        ropes=(rope,),
        layers=tuple(layer(model, index) for index in range(model.num_layers)),
        unused=frozenset({"rope_freqs.weight"}),
    )
