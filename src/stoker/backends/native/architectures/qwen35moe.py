"""qwen35moe: Qwen 3.5 and 3.6 with experts. A qwen35 with experts and a gated shared expert."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import decoder, layers, sectioned_rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.experts import expert_parts
from stoker.backends.native.architectures.qwen35 import attention_layer, delta_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    spec = decoder(
        model,
        ropes=(sectioned_rope(model, is_interleaved=True),),
        layers=layers(model, _layer),
    )
    return with_draft_head(model, spec, further_layer)


def _layer(model: Hyperparameters, index: int) -> Layer:
    return delta_layer(model, index, **gated_experts(model, index))


def further_layer(model: Hyperparameters, index: int) -> Layer:
    """The layer of a draft head, which always has attention."""
    return attention_layer(model, index, **gated_experts(model, index))


def gated_experts(model: Hyperparameters, index: int) -> dict[str, Any]:
    """Experts with normalized weights and the gated shared expert, as fields of `Layer`."""
    gate = model.linear(f"blk.{index}.ffn_gate_inp_shexp", 1, model.hidden_size)
    shared_size = model.integer("expert_shared_feed_forward_length", model.feed_forward_sizes[index])
    return expert_parts(model, index, shared_size=shared_size, routing={"is_normalised": True, "shared_gate": gate})
