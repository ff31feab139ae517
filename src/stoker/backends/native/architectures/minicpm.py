"""MiniCPM: a llama with scales of embedding, residuals and logits (see `scaled_decoder`)."""

from __future__ import annotations

from math import sqrt
from typing import Any

from stoker.backends.native.architectures.common import (
    DIVISORS,
    LONG_DIVISORS,
    SHORT_DIVISORS,
    layer,
    layers,
    long_rope,
    rope,
    scaled_decoder,
)
from stoker.backends.native.architectures.latent import Sizes, latent_attention
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec

_EMBEDDING_SCALE, _DEPTH_SCALE, _BASE_SIZE = 12.0, 1.4, 256
"""Embedding scale, residual scale times √layers, and hidden size at which logits are unscaled, in all models of this
family. Old files lack these values; files of MiniCPM 3 always do."""


def describe_minicpm(model: Hyperparameters) -> DecoderSpec:
    """MiniCPM 1, 2 and 4, dense."""
    return _described(
        model,
        logit_divisor=model.number("logit_scale", _BASE_SIZE / model.hidden_size),
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model),
        unused=frozenset({DIVISORS}),
    )


def describe_minicpm3(model: Hyperparameters) -> DecoderSpec:
    """MiniCPM 3. Latent attention (MLA) and LongRoPE, besides the scales."""
    sizes = Sizes.of_plain_heads(model)
    return _described(
        model,
        logit_divisor=model.number("logit_scale", model.hidden_size / _BASE_SIZE),
        ropes=(long_rope(model, RopePairs.HALVES, dim=sizes.rotated),),
        layers=tuple(layer(model, index, **latent_attention(model, index, sizes)) for index in range(model.num_layers)),
        unused=frozenset({SHORT_DIVISORS, LONG_DIVISORS}),
    )


def _described(model: Hyperparameters, **more: Any) -> DecoderSpec:
    return scaled_decoder(
        model,
        embedding_scale=model.number("embedding_scale", _EMBEDDING_SCALE),
        residual_scale=model.number("residual_scale", _DEPTH_SCALE / sqrt(model.num_layers)),
        **more,
    )
