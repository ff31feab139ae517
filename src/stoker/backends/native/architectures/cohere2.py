"""cohere2: Command R7B and Command A. Parallel attention and feed-forward, layer norms without biases, sliding windows;
every fourth layer has neither window nor RoPE.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, rope, windowed_layers
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer, NormKind

_PERIOD = 4
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rotates = rope(model, RopePairs.ADJACENT)
    window = model.integer("attention.sliding_window", high=2**31 - 1)
    return decoder(
        model,
        norm=NormKind.LAYER,
        output_norm=model.norm("output_norm", scale=model.number("logit_scale")),
        ropes=(rotates, no_rope(rotates.pairs, rotates.dim)),
        layers=tuple(
            _layer(model, index, window if is_windowed else None)
            for index, is_windowed in enumerate(windowed_layers(model, _PERIOD))
        ),
    )


def _layer(model: Hyperparameters, index: int, window: int | None) -> Layer:
    return layer(
        model,
        index,
        feed_forward_norm=model.norm(f"blk.{index}.attn_norm"),
        is_parallel=True,
        rope=_ROTATES if window else _STANDS,
        window=window,
    )
