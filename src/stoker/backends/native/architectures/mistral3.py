"""mistral3: Mistral Small 3.1 and Ministral 3 as text models. A llama that may scale queries by position."""

from __future__ import annotations

from dataclasses import replace
from math import log

from stoker.backends.native.architectures.common import DIVISORS, check_betas, decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import RopeScaling
from stoker.backends.native.spec import DecoderSpec, QueryScales


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    scaling = _scaling(model)
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS, scaling=scaling),),
        attention_scale=model.optional_number("attention.scale") or model.head_size**-0.5,
        query_scales=_query_scales(model, scaling),
        layers=layers(model),
        unused=frozenset({DIVISORS}),
    )


def _scaling(model: Hyperparameters) -> RopeScaling:
    """The RoPE scaling. With `yarn_log_multiplier`, a factor that YaRN gives sine and cosine is undone."""
    check_betas(model)
    scaling, multiplier = model.rope_scaling(), model.optional_number("rope.scaling.yarn_log_multiplier")
    if multiplier is None or not scaling.is_yarn or scaling.factor <= 1:
        return scaling
    taken_back = 1 + 0.1 * multiplier * log(scaling.factor)
    return replace(scaling, attention_factor=scaling.attention_factor / taken_back)


def _query_scales(model: Hyperparameters, scaling: RopeScaling) -> QueryScales | None:
    slope = model.optional_number("attention.temperature_scale")
    return None if slope is None else QueryScales(slope=slope, period=scaling.original_context)
