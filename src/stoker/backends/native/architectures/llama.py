"""llama: Llama 1 to 3, Mistral, Mixtral, SmolLM and models of the same form. `rope_freqs` has Llama 3's divisors."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layer, layers, rope
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The converter has reordered heads, so that RoPE rotates adjacent pairs of elements."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model, _mixtral_layer if model.num_experts else layer),
        unused=frozenset({DIVISORS}),
    )


def _mixtral_layer(model: Hyperparameters, index: int) -> Layer:
    return expert_layer(model, index, size=model.feed_forward_sizes[index], routing={"is_normalised": True})
