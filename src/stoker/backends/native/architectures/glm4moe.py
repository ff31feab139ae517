"""glm4moe: GLM 4.5 to 4.7. The first layers are dense; sigmoids route, with a bias for the choice."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, head_norms, layer, layers, rope
from stoker.backends.native.architectures.experts import expert_layer, expert_size, routing_of
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec, Layer, Norm, RopePairs, Routing


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. Layers that guess further tokens are left alone."""
    if model.lists("rope.dimension_sections"):
        model.refuse("it rotates along several axes, as models that see do")
    return decoder(
        model,
        architecture="glm4moe",
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, _layer),
        unused=model.tensors_of_further_layers(),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    block = f"blk.{index}"
    more = head_norms(model, index) if model.has(f"{block}.attn_q_norm.weight") else {}
    more |= {"feed_forward_norm": model.norm(f"{block}.post_attention_norm")}
    if index < model.integer("leading_dense_block_count", 0, low=0):
        return layer(model, index, experts=None, **more)
    routing = {
        "routing": routing_of(model, Routing.SIGMOID),
        "is_normalised": model.flag("expert_weights_norm", default=False),
        "selection_bias": Norm(weight=f"{block}.exp_probs_b.bias", size=model.num_experts),
    }
    shared_size = model.integer("expert_shared_count", 0, low=0) * expert_size(model)
    return expert_layer(model, index, shared_size=shared_size, routing=routing, **more)
