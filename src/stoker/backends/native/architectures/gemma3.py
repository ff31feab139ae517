"""gemma3: the text part of Gemma 3. Norms before and after each part of a layer, windows in five of six layers."""

from __future__ import annotations

from math import sqrt
from typing import Any

from stoker.backends.native.architectures.common import (
    decoder,
    head_norms,
    layer_between_norms,
    plain_scaling,
    rope,
    windowed_layers,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import Activation, DecoderSpec, Layer

_PERIOD = 6
"""In each group of this many layers, the last has no window."""
_LAYERS_OF_27B = 62
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe(model: Hyperparameters, **more: Any) -> DecoderSpec:
    """See `describe_decoder`. The converter has already added 1 to the weights of all norms.

    Args:
        model: the file.
        more: fields of `DecoderSpec` that differ from the defaults.
    """
    window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1)
    is_windowed = windowed_layers(model, _PERIOD)
    # Only the 27B model does not scale scores by its head size; no file says so.
    scaled_by = model.hidden_size // model.num_heads if model.num_layers == _LAYERS_OF_27B else model.head_size
    return decoder(
        model,
        activation=Activation.GELU_TANH,
        attention_scale=1 / sqrt(scaled_by),
        embedding_scale=sqrt(model.hidden_size),
        logit_softcap=model.optional_number("final_logit_softcapping") or 0.0,
        ropes=_ropes(model),
        layers=tuple(
            _layer(model, index, window if window and is_windowed[index] else None) for index in range(model.num_layers)
        ),
        **more,
    )


def _ropes(model: Hyperparameters) -> tuple[Rope, Rope]:
    """Only layers without a window have RoPE scaling; a window fits into the trained context anyway."""
    window_base = model.rope_base("rope.freq_base_swa")
    return (
        rope(model, RopePairs.HALVES),
        rope(model, RopePairs.HALVES, base=window_base, scaling=plain_scaling(model)),
    )


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    return layer_between_norms(
        model,
        index,
        **head_norms(model, index),
        rope=_WINDOW if window else _EVERYTHING,
        window=window,
    )
