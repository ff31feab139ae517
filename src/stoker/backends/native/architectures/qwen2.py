"""qwen2, pangu-embedded: Qwen 2 and 2.5. A llama with biases of queries, keys and values, and NeoX-style RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. Biases are used because they are in the file."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model),
    )


def describe_pangu(model: Hyperparameters) -> DecoderSpec:
    """openPangu Embedded. See `describe_decoder`: with a bias after attention, too."""
    return describe(model)
