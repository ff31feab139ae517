"""qwen2moe: Qwen 1.5 and 2 with experts. A qwen2 with experts and a gated shared expert."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The weights of a row's experts are not normalized to a sum of 1."""
    ropes = (rope(model, RopePairs.HALVES),)
    return decoder(model, ropes=ropes, layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    gate = model.linear(f"blk.{index}.ffn_gate_inp_shexp", 1, model.hidden_size)
    shared_size = model.integer("expert_shared_feed_forward_length", model.feed_forward_sizes[index])
    return expert_layer(model, index, shared_size=shared_size, routing={"shared_gate": gate})
