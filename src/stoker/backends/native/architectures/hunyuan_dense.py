"""hunyuan-dense: Hunyuan, dense. A llama with NeoX-style RoPE (halves), and norms over heads after RoPE."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, head_norms, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import DecoderSpec, HeadNorms, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.lists("rope.dimension_sections"):
        model.refuse("it rotates along several axes, as models that see do")
    return decoder_with(model, rope(model, RopePairs.HALVES, base=base_of(model), divisors=DIVISORS))


def decoder_with(model: Hyperparameters, rotation: Rope) -> DecoderSpec:
    """The decoder with this rotation."""
    return decoder(model, ropes=(rotation,), layers=layers(model, _layer), unused=frozenset({DIVISORS}))


def base_of(model: Hyperparameters) -> float:
    """The base of RoPE, increased if `rope.scaling.alpha` stretches the context."""
    base, alpha, dim = model.rope_base(), model.optional_number("rope.scaling.alpha"), model.head_size
    return base if alpha is None else base * alpha ** (dim / (dim - 2))


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(model, index, **head_norms(model, index), head_norms=HeadNorms.AFTER_ROPE)
