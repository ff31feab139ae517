"""granite: Granite 3 and 4, dense. A llama with scales of embedding, scores, residuals and logits."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from stoker.backends.native.architectures.common import DIVISORS, layer, layers, rope, scaled_decoder
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(
    model: Hyperparameters, make: Callable[[Hyperparameters, int], Layer] = layer, more_ropes: tuple[Rope, ...] = ()
) -> DecoderSpec:
    """See `describe_decoder`; `make` makes a layer from its index; `more_ropes` follow the rope of the model."""
    return scaled_decoder(
        model,
        embedding_scale=model.optional_number("embedding_scale") or 1.0,
        residual_scale=model.optional_number("residual_scale") or 1.0,
        logit_divisor=model.number("logit_scale"),
        attention_scale=model.optional_number("attention.scale") or 1 / sqrt(model.head_size),
        ropes=(_rope(model), *more_ropes),
        layers=layers(model, make),
        unused=frozenset({DIVISORS}),
    )


def _rope(model: Hyperparameters) -> Rope:
    """Models without position encoding have the key `rope.scaling.finetuned` = false."""
    if not model.flag("rope.scaling.finetuned", default=True):
        return no_rope(RopePairs.ADJACENT, model.rope_dim())
    return rope(model, RopePairs.ADJACENT, divisors=DIVISORS)
