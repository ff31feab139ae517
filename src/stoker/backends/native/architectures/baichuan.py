"""baichuan: Baichuan 1 and 2. A llama; the larger models have ALiBi instead of RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, distance_slopes, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec

_LAYERS_OF_7B, _LAYERS_OF_13B = 32, 40
"""Numbers of layers, which tell the sizes apart; no file says whether a model has ALiBi."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.num_layers == _LAYERS_OF_7B:
        return decoder(model, ropes=(rope(model, RopePairs.ADJACENT),), layers=layers(model))
    if model.num_layers != _LAYERS_OF_13B:
        model.refuse(f"it has {model.num_layers} layers; what tells positions is known of {_LAYERS_OF_7B} and 40 alone")
    slopes = distance_slopes(model.num_heads)
    return decoder(model, ropes=(no_rope(RopePairs.ADJACENT, 0),), distance_slopes=slopes, layers=layers(model))
