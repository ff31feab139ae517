"""gemma3: the text part of Gemma 3. Norms on both sides, five windowed layers to one that sees everything."""

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
"""Each so-many-th layer sees everything."""
_LAYERS_OF_27B = 62
_EVERYTHING, _WINDOW = 0, 1
"""Indices of the two ropes."""


def describe(model: Hyperparameters, **more: Any) -> DecoderSpec:
    """See `describe_decoder`. The converter has already added 1 to the weights of all norms.

    Args:
        model: the file.
        more: whatever is different, by the names of `DecoderSpec`.
    """
    window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1)
    is_windowed = windowed_layers(model, _PERIOD)
    # The one size whose heads are not scaled by their own size; no file says so.
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
    """Only layers that see everything are stretched; the window fits into the trained context anyway."""
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
