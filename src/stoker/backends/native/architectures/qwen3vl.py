"""qwen3vl: Qwen 3 VL as a text model. A qwen3 whose rotations along several axes are one for text."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer_with_head_norms, layers, sectioned_rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. What images add to the first layers is nothing for text."""
    return decoder(
        model,
        ropes=(sectioned_rope(model, is_interleaved=True),),
        layers=layers(model, layer_with_head_norms),
    )
