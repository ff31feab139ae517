"""bailingmoe: Ling of 2025. A llama whose layers have experts and a shared expert."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layers, rope
from stoker.backends.native.architectures.experts import expert_layer, size_of_shared
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    routing = {"is_normalised": model.flag("expert_weights_norm", default=False)}
    return expert_layer(model, index, shared_size=size_of_shared(model), routing=routing)
