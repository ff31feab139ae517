"""gpt-oss: experts with biases, attention sinks, and a sliding window in every other layer."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope, windows
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.spec import Activation, DecoderSpec, Layer

_PERIOD = 2
"""In each group of this many layers, the last has no window."""
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe_gpt_oss(model: Hyperparameters) -> DecoderSpec:
    """gpt-oss 20b and 120b."""
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return decoder(
        model,
        activation=Activation.SWIGLU_CLAMPED,
        ropes=(rope(model, RopePairs.HALVES), rope(model, RopePairs.HALVES, base=window_base)),
        layers=layers(model, _layer, windows(model, _PERIOD)),
    )


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    block = f"blk.{index}"
    return expert_layer(
        model,
        index,
        routing={"routing": Routing.SOFTMAX_OF_CHOSEN},
        feed_forward_norm=model.norm(f"{block}.post_attention_norm"),
        sinks=Norm(weight=f"{block}.attn_sinks.weight", size=model.heads[index].num),
        rope=_WINDOW if window else _EVERYTHING,
        window=window,
    )
