"""arcee: Arcee's AFM. A llama whose feed-forward squares what is positive, and has no gate."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import Activation, DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        architecture="arcee",
        activation=Activation.RELU_SQUARED,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    only = model.linear(f"blk.{index}.ffn_up", model.feed_forward_sizes[index], model.hidden_size)
    return layer(model, index, gate=only, up=None)
