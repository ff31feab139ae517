"""mellum: Mellum 2. A qwen3moe with windows in three of four layers; only the others have RoPE scaling."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, plain_scaling, rope, windowed_layers
from stoker.backends.native.architectures.qwen3moe import normalised_experts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.HALVES), rope(model, RopePairs.HALVES, scaling=plain_scaling(model)))
    return decoder(model, ropes=ropes, layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1)
    is_windowed = window > 0 and windowed_layers(model, _PERIOD)[index]
    return normalised_experts(
        model, index, rope=_WINDOW if is_windowed else _EVERYTHING, window=window if is_windowed else None
    )
