"""hunyuan-dense: Hunyuan, dense. A llama with rotated halves, whose heads are normalised after their rotation."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, head_norms, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, HeadNorms, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if model.lists("rope.dimension_sections"):
        model.refuse("it rotates along several axes, as models that see do")
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES, base=_base(model), divisors=DIVISORS),),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _base(model: Hyperparameters) -> float:
    base, alpha, dim = model.rope_base(), model.optional_number("rope.scaling.alpha"), model.head_size
    return base if alpha is None else base * alpha ** (dim / (dim - 2))


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(model, index, **head_norms(model, index), head_norms=HeadNorms.AFTER_ROPE)
