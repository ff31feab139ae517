"""lfm2: LFM2. Short convolutions, and attention in the layers that have heads of keys and values."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import decoder, layer, layer_with_head_norms, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer, RopePairs
from stoker.backends.native.layer_parts import Recurrence
from stoker.backends.native.spec import DecoderSpec, Layer

_MAX_TAPS = 8


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, lfm2_layer),
        output_norm=model.norm("token_embd_norm"),
    )


def lfm2_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with a short convolution, or with attention.

    Args:
        model: the file.
        index: index of the layer.
        more: further fields of `Layer`.
    """
    if model.heads[index].num_kv:
        window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1) or None
        return layer_with_head_norms(model, index, window=window, **more)
    block, hidden = f"blk.{index}.shortconv", model.hidden_size
    taps = model.integer("shortconv.l_cache", low=2, high=_MAX_TAPS)
    b, c, x = (model.linear(f"{block}.in_proj", hidden, hidden, first_row=part * hidden) for part in range(3))
    return layer(
        model,
        index,
        heads=None,
        recurrence=Recurrence(
            mixer=Mixer.SHORT_CONV, taps=taps, convolution=model.convolution(f"{block}.conv", taps, hidden)
        ),
        query=b,
        key=c,
        value=x,
        output=model.linear(f"{block}.out_proj", hidden, hidden),
        **more,
    )
