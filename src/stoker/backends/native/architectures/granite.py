"""granite: Granite 3 and 4, dense. A llama whose embedding, scores, residuals and logits have scales of their own."""

from __future__ import annotations

from math import sqrt

from stoker.backends.native.architectures.common import DIVISORS, layers, rope, scaled_decoder
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return describe_granite(model, "granite", layers(model))


def describe_granite(model: Hyperparameters, architecture: str, layers: tuple[Layer, ...]) -> DecoderSpec:
    """What all of the family have in common."""
    return scaled_decoder(
        model,
        architecture=architecture,
        embedding_scale=model.optional_number("embedding_scale") or 1.0,
        residual_scale=model.optional_number("residual_scale") or 1.0,
        logit_divisor=model.number("logit_scale"),
        attention_scale=model.optional_number("attention.scale") or 1 / sqrt(model.head_size),
        ropes=(_rope(model),),
        layers=layers,
        unused=frozenset({DIVISORS}),
    )


def _rope(model: Hyperparameters) -> Rope:
    """Models that know no positions say so by this key."""
    if not model.flag("rope.scaling.finetuned", default=True):
        return no_rope(RopePairs.ADJACENT, model.rope_dim())
    return rope(model, RopePairs.ADJACENT, divisors=DIVISORS)
