"""lfm2moe: LFM2 with experts. The first layers are dense; experts are chosen with a bias."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.architectures.experts import expert_parts, routing_of
from stoker.backends.native.architectures.lfm2 import lfm2_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, _layer),
        output_norm=model.norm("token_embd_norm"),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    if index < model.integer("leading_dense_block_count", 0, low=0):
        return lfm2_layer(model, index, experts=None)
    routing = {
        "routing": routing_of(model, Routing.SIGMOID),
        "is_normalised": True,
        "selection_bias": model.vector(f"blk.{index}.exp_probs_b.bias", model.num_experts),
    }
    return lfm2_layer(model, index, **expert_parts(model, index, routing=routing))
