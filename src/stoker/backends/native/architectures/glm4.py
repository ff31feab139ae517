"""glm4: GLM 4 of 2025, dense. Norms on both sides, half of each head rotated, gate and up in one matrix."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import DecoderSpec, Layer, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.lists("rope.dimension_sections"):  # their pairs are others, too
        model.refuse("it rotates along several axes, as models that see do")
    rope = scaled_rope(
        pairs=RopePairs.ADJACENT,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=model.rope_scaling(),
    )
    layers = tuple(_layer(model, index) for index in range(model.num_layers))
    return decoder(model, architecture="glm4", ropes=(rope,), layers=layers)


def _layer(model: Hyperparameters, index: int) -> Layer:
    block = f"blk.{index}"
    return layer(
        model,
        index,
        post_attention_norm=model.norm(f"{block}.post_attention_norm"),
        post_feed_forward_norm=model.norm(f"{block}.post_ffw_norm"),
    )
