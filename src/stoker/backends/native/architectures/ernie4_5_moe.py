"""ernie4_5-moe: ERNIE 4.5 with experts. Some layers are dense; experts are chosen with a bias."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.architectures.experts import expert_layer, expert_size
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.ADJACENT),)
    return decoder(model, ropes=ropes, layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    num_dense, step = model.integer("leading_dense_block_count", 0, low=0), model.integer("interleave_moe_layer_step")
    if index < num_dense or (index + 1) % step:
        return layer(model, index, experts=None)
    bias = f"blk.{index}.exp_probs_b.bias"
    routing = {
        "is_normalised": True,
        "selection_bias": Norm(weight=bias, size=model.num_experts) if model.has(bias) else None,
    }
    num_shared = model.integer("expert_shared_count", 0, low=0)
    shared_size = model.integer("expert_shared_feed_forward_length", 0, low=0) or num_shared * expert_size(model)
    return expert_layer(model, index, shared_size=shared_size if num_shared else 0, routing=routing)
