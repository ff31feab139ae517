"""Command R and its successors: attention and feed-forward are parallel, and layer norms have no biases."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import decoder, layer, layers, plain_decoder, rope, windows
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import NormKind, RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe_command_r(model: Hyperparameters) -> DecoderSpec:
    """Command R. The largest model is refused, because its heads have layer norms."""
    norm = model.norm("output_norm", scale=model.optional_number("logit_scale") or 1.0)
    return plain_decoder(model, RopePairs.ADJACENT, _layer, norm=NormKind.LAYER, output_norm=norm)


def describe_cohere2(model: Hyperparameters) -> DecoderSpec:
    """Command R7B and Command A. Sliding windows and RoPE in all but every fourth layer."""

    def make(model: Hyperparameters, index: int, window: int | None) -> Layer:
        return _layer(model, index, rope=_ROTATES if window else _STANDS, window=window)

    rotates = rope(model, RopePairs.ADJACENT)
    return decoder(
        model,
        norm=NormKind.LAYER,
        output_norm=model.norm("output_norm", scale=model.number("logit_scale")),
        ropes=(rotates, no_rope(rotates.pairs, rotates.dim)),
        layers=layers(model, make, windows(model, _PERIOD)),
    )


def _layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    return layer(model, index, feed_forward_norm=model.norm(f"blk.{index}.attn_norm"), is_parallel=True, **more)
