"""Nemotron H: each block of the file is Mamba 2, attention without position encoding, or a feed-forward with squared
ReLU, with or without experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.architectures.experts import experts
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import Activation, DecoderSpec, Layer


def describe_nemotron_h(model: Hyperparameters) -> DecoderSpec:
    """Nemotron H, Nano 2, Nano 3. Draft heads (multi-token prediction) are ignored."""
    return decoder(
        model,
        activation=Activation.RELU_SQUARED,
        ropes=(no_rope(RopePairs.HALVES, model.head_size),),
        layers=tuple(_layers(model)),
    )


describe_nemotron_h_moe = describe_nemotron_h


def _layers(model: Hyperparameters) -> Iterator[Layer]:
    """The layers: each is a block with attention or Mamba 2, and the feed-forward block after it, if any.

    Raises:
        ModelUnsupported: a feed-forward is the first block, or follows another one.
    """
    sizes = [*model.feed_forward_sizes, 0]
    if any(before and size for before, size in zip([1, *sizes], sizes, strict=False)):
        model.refuse("a feed-forward has no attention and no scan before it")
    for index in range(model.num_layers):
        if not sizes[index]:
            mixer = {} if model.heads[index].num_kv else mamba2(model, index)
            yield layer(model, index, **mixer, **_feed_forward(model, index + 1, sizes[index + 1]))


def _feed_forward(model: Hyperparameters, index: int, size: int) -> dict[str, Any]:
    """The feed-forward in a block of the file, as fields of `Layer`."""
    if not size:
        return {"feed_forward_norm": None, "gate": None, "up": None, "down": None, "experts": None}
    block, hidden, suffix = f"blk.{index}", model.hidden_size, ""
    parts: dict[str, Any] = {"feed_forward_norm": model.norm(f"{block}.attn_norm"), "up": None, "experts": None}
    if model.num_experts:
        parts["experts"] = _experts(model, index)
        size, suffix = model.integer("expert_shared_feed_forward_length"), "_shexp"
    gate = model.linear(f"{block}.ffn_up{suffix}", size, hidden)
    return parts | {"gate": gate, "down": model.linear(f"{block}.ffn_down{suffix}", hidden, size)}


def _experts(model: Hyperparameters, index: int) -> Any:
    return experts(
        model,
        index,
        size=model.counts_of_layers("expert_feed_forward_length", low=0)[index],
        has_up=False,
        routing=Routing.SIGMOID,
        is_normalised=model.flag("expert_weights_norm", default=False),
        selection_bias=model.vector(f"blk.{index}.exp_probs_b.bias", model.num_experts),
    )
