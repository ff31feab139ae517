"""gemma2: Gemma 2. Norms before and after each part of a layer, soft caps, a sliding window in every other layer."""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import decoder, layer_between_norms, rope, windowed_layers
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import Activation, DecoderSpec, Layer

_PERIOD = 2
"""In each group of this many layers, the last has no window."""
_LAYERS_OF_27B = 46
_WINDOW_SIZE, _SCORE_CAP, _LOGIT_CAP = 4096, 50.0, 30.0
"""The same in all models of this family; old files lack them."""
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The converter has already added 1 to the weights of all norms."""
    window = model.integer("attention.sliding_window", _WINDOW_SIZE, high=2**31 - 1)
    is_windowed = windowed_layers(model, _PERIOD)
    # Only the 27B model does not scale scores by its head size; no file says so.
    scaled_by = model.hidden_size // model.num_heads if model.num_layers == _LAYERS_OF_27B else model.head_size
    return decoder(
        model,
        activation=Activation.GELU_TANH,
        attention_scale=1 / sqrt(scaled_by),
        attention_softcap=model.number("attn_logit_softcapping", _SCORE_CAP),
        embedding_scale=sqrt(model.hidden_size),
        logit_softcap=model.number("final_logit_softcapping", _LOGIT_CAP),
        ropes=_ropes(model),
        layers=tuple(_layer(model, index, window if is_windowed[index] else None) for index in range(model.num_layers)),
    )


def _ropes(model: Hyperparameters) -> tuple[Rope, Rope]:
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return rope(model, RopePairs.HALVES), rope(model, RopePairs.HALVES, base=window_base)


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    return layer_between_norms(model, index, rope=_WINDOW if window else _EVERYTHING, window=window)
