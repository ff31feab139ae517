"""olmo2: norms only after attention and feed-forward, and over all heads together; OLMo 3 has sliding windows."""

from __future__ import annotations

from stoker.backends.native.architectures.common import (
    decoder,
    head_norms,
    layer_between_norms,
    layers,
    plain_scaling,
    rope,
    windows,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import HeadNorms, RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
"""In each group of this many layers, the last has no window."""
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe_olmo2(model: Hyperparameters) -> DecoderSpec:
    """OLMo 2 and 3. Only layers without a window have RoPE scaling."""
    everything = rope(model, RopePairs.HALVES)
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return decoder(
        model,
        ropes=(everything, rope(model, RopePairs.HALVES, base=window_base, scaling=plain_scaling(model))),
        layers=layers(model, _layer, windows(model, _PERIOD, 0)),
    )


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    return layer_between_norms(
        model,
        index,
        attention_norm=None,
        feed_forward_norm=None,
        **head_norms(model, index, HeadNorms.WHOLE_ROW),
        rope=_WINDOW if window else _EVERYTHING,
        window=window,
    )
