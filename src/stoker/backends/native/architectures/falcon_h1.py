"""falcon-h1: each layer of the file has attention and Mamba 2 in parallel, and is described as two layers."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, rope
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_falcon_h1(model: Hyperparameters) -> DecoderSpec:
    """Falcon H1."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=tuple(part for index in range(model.num_layers) for part in _both(model, index)),
        unused=frozenset({"rope_freqs.weight"}),
    )


def _both(model: Hyperparameters, index: int) -> tuple[Layer, Layer]:
    attention = layer(model, index, feed_forward_norm=None, gate=None, up=None, down=None)
    name = f"blk.{index}.ffn_norm"
    norm = Norm(weight=name if model.has(name) else f"{name}.weight", size=model.hidden_size)
    return attention, layer(model, index, **mamba2(model, index), is_beside=True, feed_forward_norm=norm)
