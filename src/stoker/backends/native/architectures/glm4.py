"""glm4: GLM 4 of 2025, dense. Norms on both sides, half of each head rotated, gate and up in one matrix."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer_between_norms, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.lists("rope.dimension_sections"):  # their pairs are others, too
        model.refuse("it rotates along several axes, as models that see do")
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT),),
        layers=layers(model, layer_between_norms),
    )
