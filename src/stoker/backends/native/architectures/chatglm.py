"""chatglm: GLM 3 and 4 of 2024. A llama with fused matrices, and RoPE on half of each head."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, ropes=(rope(model, RopePairs.ADJACENT),), layers=layers(model))
