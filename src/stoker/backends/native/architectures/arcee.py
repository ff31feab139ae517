"""arcee: Arcee's AFM. A llama whose feed-forward has no gate, and squared ReLU as activation."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layer_without_gate, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import Activation, DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        activation=Activation.RELU_SQUARED,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model, layer_without_gate),
        unused=frozenset({DIVISORS}),
    )
