"""exaone-moe: EXAONE with experts. The first layers are dense; every fourth layer has neither window nor RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, head_norms, layers, rope, windowed_layers
from stoker.backends.native.architectures.experts import chosen_as_said, expert_size, layer_behind_dense
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rotates = rope(model, RopePairs.HALVES, divisors=DIVISORS)
    return decoder(
        model,
        ropes=(rotates, no_rope(rotates.pairs, rotates.dim)),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    is_windowed = windowed_layers(model, _PERIOD)[index]
    return layer_behind_dense(
        model,
        index,
        shared_size=model.integer("expert_shared_feed_forward_length", 0, low=0) or expert_size(model),
        routing=chosen_as_said(model, index, Routing.SIGMOID),
        **head_norms(model, index),
        rope=_ROTATES if is_windowed else _STANDS,
        window=model.integer("attention.sliding_window", high=2**31 - 1) if is_windowed else None,
    )
