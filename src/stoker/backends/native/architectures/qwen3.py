"""qwen3: Qwen 3, dense. Norms over each head of queries and keys, no biases, a separate head size."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer_with_head_norms, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, layer_with_head_norms),
    )
