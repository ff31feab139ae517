"""internlm2, xverse: InternLM 2 and 2.5. A llama; the converter has split its fused matrices."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT),),
        layers=layers(model),
    )


def describe_xverse(model: Hyperparameters) -> DecoderSpec:
    """XVERSE. See `describe_decoder`: a llama."""
    return describe(model)
