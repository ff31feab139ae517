"""deepseek: DeepSeek MoE of 2024. A llama with experts and a shared expert; the first layers are dense."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layers, rope
from stoker.backends.native.architectures.experts import layer_behind_dense, size_of_shared
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The weights of a row's experts are not normalized to a sum of 1."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer_behind_dense(model, index, shared_size=size_of_shared(model), routing={})
