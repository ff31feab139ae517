"""qwen3vl: Qwen 3 VL as a text model. A qwen3 with M-RoPE, which for text equals RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer_with_head_norms, layers, sectioned_rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. Rows of images have further parts for the first layers (DeepStack)."""
    return decoder(
        model,
        deep_layers=model.integer("n_deepstack_layers", 0, low=0, high=model.num_layers - 1),
        ropes=(sectioned_rope(model, is_interleaved=True),),
        layers=layers(model, layer_with_head_norms),
    )
