"""bitnet: BitNet b1.58. A llama with a norm before the output matrix of attention and one before the last matrix
of the feed-forward; each matrix may have a scale.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, ropes=(rope(model, RopePairs.HALVES),), layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    block, heads = f"blk.{index}", model.heads[index]
    return layer(
        model,
        index,
        mixed_norm=model.norm(f"{block}.attn_sub_norm", heads.num * heads.size),
        inner_norm=model.norm(f"{block}.ffn_sub_norm", model.feed_forward_sizes[index]),
    )
