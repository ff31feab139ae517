"""jamba: Jamba. Layers without heads of keys are Mamba 1, the others have attention without position encoding; some
have experts instead of a dense feed-forward.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, layers
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.architectures.mamba1 import mamba1
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, ropes=(no_rope(RopePairs.HALVES, 0),), layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    mixer = {} if model.heads[index].num_kv else mamba1(model, index, model.norm)
    if not model.has(f"blk.{index}.ffn_gate_inp.weight"):
        return layer(model, index, experts=None, **mixer)
    return expert_layer(model, index, size=model.feed_forward_sizes[index], **mixer)
