"""olmo2: OLMo 2 and 3. Norms only after attention and feed-forward, and over all heads together; OLMo 3 has windows."""

from __future__ import annotations

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
from stoker.backends.native.spec import DecoderSpec, HeadNorms, Layer

_PERIOD = 4
"""In each group of this many layers, the last has no window."""
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. Only layers without a window have RoPE scaling."""
    window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1)
    is_windowed = windowed_layers(model, _PERIOD)
    everything = rope(model, RopePairs.HALVES)
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return decoder(
        model,
        ropes=(everything, rope(model, RopePairs.HALVES, base=window_base, scaling=plain_scaling(model))),
        layers=tuple(
            _layer(model, index, window if window and is_windowed[index] else None) for index in range(model.num_layers)
        ),
    )


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    heads = model.heads[index]
    return layer_between_norms(
        model,
        index,
        attention_norm=None,
        feed_forward_norm=None,
        **head_norms(model, index, heads.num * heads.size, heads.num_kv * heads.size),
        head_norms=HeadNorms.WHOLE_ROW,
        rope=_WINDOW if window else _EVERYTHING,
        window=window,
    )
