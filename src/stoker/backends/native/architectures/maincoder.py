"""maincoder: Maincoder. A llama with norms over heads after RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, head_norms, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, HeadNorms, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.ADJACENT),)
    return decoder(model, ropes=ropes, layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(model, index, **head_norms(model, index), head_norms=HeadNorms.AFTER_ROPE)
