"""command-r: Command R. A cohere2 without windows, with RoPE in all layers."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer, NormKind


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The largest model is refused, because its heads have layer norms."""
    return decoder(
        model,
        norm=NormKind.LAYER,
        output_norm=model.norm("output_norm", scale=model.optional_number("logit_scale") or 1.0),
        ropes=(rope(model, RopePairs.ADJACENT),),
        layers=layers(model, _layer),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(model, index, feed_forward_norm=model.norm(f"blk.{index}.attn_norm"), is_parallel=True)
