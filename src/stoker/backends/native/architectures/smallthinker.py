"""smallthinker: experts are chosen before attention. Three of four layers have a sliding window; the first, the fifth
and so on have neither window nor RoPE.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.architectures.experts import expert_layer, routing_of
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import Activation, DecoderSpec, Layer

_PERIOD = 4
_EVERYTHING, _WINDOW, _STANDS = 0, 1, 2
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe_smallthinker(model: Hyperparameters) -> DecoderSpec:
    """SmallThinker 4B and 21B. A model without windows has RoPE in all layers."""
    if not model.num_experts:
        model.refuse("it has no experts")
    rotates = rope(model, RopePairs.HALVES)
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return decoder(
        model,
        activation=Activation.RELU,
        ropes=(rotates, rope(model, RopePairs.HALVES, base=window_base), no_rope(rotates.pairs, rotates.dim)),
        layers=layers(model, _layer),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1)
    is_windowed = window > 0 and _windowed(model)[index]
    rotation = _WINDOW if is_windowed else _EVERYTHING
    norm = model.norm(f"blk.{index}.ffn_norm")
    routing = {"routing": routing_of(model, Routing.SOFTMAX), "is_normalised": True, "is_ahead": True, "norm": norm}
    return expert_layer(
        model,
        index,
        routing=routing,
        rope=rotation if not window or index % _PERIOD else _STANDS,
        window=window if is_windowed else None,
    )


def _windowed(model: Hyperparameters) -> list[bool]:
    listed = model.flags_of_layers("attention.sliding_window_pattern")
    if listed is not None:
        return listed
    period = model.integer("attention.sliding_window_pattern", _PERIOD, low=0)
    return [period == 0 or bool(index % period) for index in range(model.num_layers)]
