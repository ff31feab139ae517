"""glm4moe: GLM 4.5 to 4.7. The first layers are dense; sigmoid routing, with a bias for the choice of experts."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, head_norms, layers, rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.experts import chosen_as_said, layer_behind_dense, size_of_shared
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.lists("rope.dimension_sections"):
        model.refuse("it rotates along several axes, as models that see do")
    spec = decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, _layer),
    )
    return with_draft_head(model, spec, _layer)


def _layer(model: Hyperparameters, index: int) -> Layer:
    block = f"blk.{index}"
    more = head_norms(model, index) if model.has(f"{block}.attn_q_norm.weight") else {}
    more |= {"feed_forward_norm": model.norm(f"{block}.post_attention_norm")}
    routing = chosen_as_said(model, index, Routing.SIGMOID)
    return layer_behind_dense(model, index, shared_size=size_of_shared(model), routing=routing, **more)
