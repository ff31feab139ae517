"""afmoe: gated attention, norms before and after attention and feed-forward, sliding windows in three of four layers,
no RoPE in every fourth; the first layers are dense, the others have experts and a shared expert.
"""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import decoder, head_norms, layers, post_norms, rope, windows
from stoker.backends.native.architectures.experts import chosen_as_said, layer_behind_dense, size_of_shared
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
_EVERYTHING, _WINDOW, _STANDS = 0, 1, 2
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe_afmoe(model: Hyperparameters) -> DecoderSpec:
    """Arcee's Trinity."""
    rotates = rope(model, RopePairs.HALVES)
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return decoder(
        model,
        embedding_scale=sqrt(model.hidden_size),
        ropes=(rotates, rope(model, RopePairs.HALVES, base=window_base), no_rope(rotates.pairs, rotates.dim)),
        layers=layers(model, _layer, windows(model, _PERIOD, 0)),
    )


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    rotation = _WINDOW if window else _EVERYTHING
    heads = model.heads[index]
    return layer_behind_dense(
        model,
        index,
        shared_size=size_of_shared(model),
        routing=chosen_as_said(model, index, Routing.SIGMOID),
        mixed_gate=model.linear(f"blk.{index}.attn_gate", heads.num * heads.size, model.hidden_size),
        **head_norms(model, index),
        **post_norms(model, index),
        rope=rotation if (index + 1) % _PERIOD else _STANDS,
        window=window,
    )
