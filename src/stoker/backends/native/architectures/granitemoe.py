"""granitemoe: Granite 3 with experts. A granite with experts, in some models with a shared expert."""

from __future__ import annotations

from stoker.backends.native.architectures import granite
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return granite.describe(model, _layer)


def _layer(model: Hyperparameters, index: int) -> Layer:
    return expert_layer(
        model,
        index,
        size=model.feed_forward_sizes[index],
        shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0),
        routing={"is_normalised": True},
    )
