"""qwen3moe: Qwen 3 with experts. A qwen3 with experts."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import decoder, head_norms, layers, rope
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.HALVES),)
    return decoder(model, ropes=ropes, layers=layers(model, normalised_experts))


def normalised_experts(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with experts with normalized weights, and norms over heads. Arguments: see `layer`."""
    return expert_layer(model, index, routing={"is_normalised": True}, **head_norms(model, index), **more)
