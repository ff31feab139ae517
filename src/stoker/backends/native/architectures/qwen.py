"""qwen: Qwen 1. A qwen2 with fused matrices; its feed-forward has half of the size in the file."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, gate_and_up, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, ropes=(rope(model, RopePairs.HALVES),), layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    block, size = f"blk.{index}", model.feed_forward_sizes[index] // 2
    if not size or size % 32:
        model.refuse(f"a feed-forward of {size} elements (multiples of 32 can)")
    gate, up = gate_and_up(model, block, size)
    return layer(model, index, gate=gate, up=up, down=model.linear(f"{block}.ffn_down", model.hidden_size, size))
