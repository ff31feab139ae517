"""EXAONE 3 and 4, and EXAONE with experts: NeoX-style RoPE (halves), with Llama 3's divisors in `rope_freqs`."""

from __future__ import annotations

from stoker.backends.native.architectures.common import (
    DIVISORS,
    decoder,
    head_norms,
    layer_between_norms,
    layers,
    plain_decoder,
    rope,
    windows,
)
from stoker.backends.native.architectures.experts import chosen_as_said, expert_size, layer_behind_dense
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD, _WINDOW_SIZE, _LAYERS_OF_32B = 4, 4096, 64
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe_exaone(model: Hyperparameters) -> DecoderSpec:
    """EXAONE 3."""
    return plain_decoder(model, RopePairs.HALVES, divisors=DIVISORS)


def describe_exaone4(model: Hyperparameters) -> DecoderSpec:
    """EXAONE 4. Norms only after attention and feed-forward. The large model has sliding windows, and every fourth
    layer has neither window nor RoPE. The small model has no windows, whatever its file says.
    """
    has_windows = model.num_layers == _LAYERS_OF_32B
    windowed = windows(model, _PERIOD, _WINDOW_SIZE) if has_windows else [None] * model.num_layers

    def make(model: Hyperparameters, index: int, window: int | None) -> Layer:
        return layer_between_norms(
            model,
            index,
            attention_norm=None,
            feed_forward_norm=None,
            **head_norms(model, index),
            rope=_ROTATES if window or not has_windows else _STANDS,
            window=window,
        )

    return _decoder(model, layers(model, make, windowed))


def describe_exaone_moe(model: Hyperparameters) -> DecoderSpec:
    """EXAONE with experts. The first layers are dense; every fourth layer has neither window nor RoPE."""

    def make(model: Hyperparameters, index: int, window: int | None) -> Layer:
        return layer_behind_dense(
            model,
            index,
            shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0) or expert_size(model),
            routing=chosen_as_said(model, index, Routing.SIGMOID),
            **head_norms(model, index),
            rope=_ROTATES if window else _STANDS,
            window=window,
        )

    return _decoder(model, layers(model, make, windows(model, _PERIOD)))


def _decoder(model: Hyperparameters, layers: tuple[Layer, ...]) -> DecoderSpec:
    rotates = rope(model, RopePairs.HALVES, divisors=DIVISORS)
    ropes = (rotates, no_rope(rotates.pairs, rotates.dim))
    return decoder(model, ropes=ropes, layers=layers, unused=frozenset({DIVISORS}))
