"""kimi-linear: Kimi Delta Attention, and in the layers with a key attention to a latent vector without positions;
the first layers are dense, the others have experts beside a shared block.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import plain_decoder
from stoker.backends.native.architectures.experts import expert_size, layer_behind_dense, routing_of
from stoker.backends.native.architectures.kda import kda
from stoker.backends.native.architectures.latent import Sizes, latent_attention
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_kimi_linear(model: Hyperparameters) -> DecoderSpec:
    """Kimi Linear."""
    sizes = Sizes.of_prepared(model)
    scale = (sizes.plain + sizes.rotated) ** -0.5
    return plain_decoder(model, no_rope(RopePairs.HALVES, 0), _layer, attention_scale=scale)


def _layer(model: Hyperparameters, index: int) -> Layer:
    has_attention = model.heads[index].num_kv > 0
    num_shared = model.integer("expert_shared_count", 1, low=0)
    return layer_behind_dense(
        model,
        index,
        shared_size=max(1, num_shared) * expert_size(model),
        routing={
            "routing": routing_of(model, Routing.SIGMOID),
            "is_normalised": True,
            "selection_bias": model.vector(f"blk.{index}.exp_probs_b.bias", model.num_experts),
        },
        **(latent_attention(model, index, Sizes.of_prepared(model)) if has_attention else kda(model, index)),
    )
