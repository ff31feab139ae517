"""glm4: GLM 4 of 2025, dense. Norms on both sides of each part, RoPE on half of each head; fused gate and up."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer_between_norms, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.lists("rope.dimension_sections"):  # their pairs differ, too
        model.refuse("it rotates along several axes, as models that see do")
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT),),
        layers=layers(model, layer_between_norms),
    )
