"""granitehybrid: Granite 4 H. A granite, with or without experts, in which layers without heads of keys are Mamba 2."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures import granite
from stoker.backends.native.architectures.common import layer
from stoker.backends.native.architectures.experts import expert_parts
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return granite.describe(model, _layer)


def _layer(model: Hyperparameters, index: int) -> Layer:
    mixer = {} if model.heads[index].num_kv else mamba2(model, index)
    return layer(model, index, **mixer, **feed_forward(model, index))


def feed_forward(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The experts and the shared expert of a layer, as fields of `Layer`; empty for a model without experts."""
    if not model.num_experts:
        return {}
    return expert_parts(
        model,
        index,
        size=model.feed_forward_sizes[index],
        shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0),
        routing={"is_normalised": True},
    )
