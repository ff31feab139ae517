"""seed_oss: Seed-OSS. A qwen2 with a separate head size, and another name for the norm before the feed-forward."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, ropes=(rope(model, RopePairs.HALVES),), layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(model, index, feed_forward_norm=model.norm(f"blk.{index}.post_attention_norm"))
