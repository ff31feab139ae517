"""exaone4: EXAONE 4. Norms only after attention and feed-forward. The large model has sliding windows; every fourth
layer has neither window nor RoPE.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import (
    DIVISORS,
    decoder,
    head_norms,
    layer_between_norms,
    rope,
    windowed_layers,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD, _WINDOW_SIZE, _LAYERS_OF_32B = 4, 4096, 64
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The small model has no windows, whatever its file says."""
    rotates = rope(model, RopePairs.HALVES, divisors=DIVISORS)
    has_windows = model.num_layers == _LAYERS_OF_32B
    is_windowed = windowed_layers(model, _PERIOD) if has_windows else [False] * model.num_layers
    window = model.integer("attention.sliding_window", _WINDOW_SIZE, high=2**31 - 1) if has_windows else None
    return decoder(
        model,
        ropes=(rotates, no_rope(rotates.pairs, rotates.dim)),
        layers=tuple(
            _layer(model, index, window if is_windowed[index] else None, rotates=not has_windows or is_windowed[index])
            for index in range(model.num_layers)
        ),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int, window: int | None, *, rotates: bool) -> Layer:
    return layer_between_norms(
        model,
        index,
        attention_norm=None,
        feed_forward_norm=None,
        **head_norms(model, index),
        rope=_ROTATES if rotates else _STANDS,
        window=window,
    )
