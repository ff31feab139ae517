"""granite_swa: Granite with sliding windows. A granite with attention sinks, with or without experts; the file lists
the layers with a window and those with RoPE.
"""

from __future__ import annotations

from stoker.backends.native.architectures import granite
from stoker.backends.native.architectures.common import layer
from stoker.backends.native.architectures.granitehybrid import feed_forward
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return granite.describe(model, _layer, (no_rope(RopePairs.ADJACENT, model.rope_dim()),))


def _layer(model: Hyperparameters, index: int) -> Layer:
    is_windowed = model.flags_of_layers("attention.sliding_window_pattern")
    if is_windowed is None:
        model.fail("it does not list which layers have a window")
    rotates = model.flags_of_layers("attention.rope_pattern")
    return layer(
        model,
        index,
        sinks=model.norm(f"blk.{index}.attn_sinks", model.heads[index].num),
        rope=_ROTATES if rotates is None or rotates[index] else _STANDS,
        window=model.integer("attention.sliding_window", high=2**31 - 1) if is_windowed[index] else None,
        **feed_forward(model, index),
    )
