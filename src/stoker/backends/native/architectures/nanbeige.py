"""nanbeige: Nanbeige 4.2. A llama whose layers are computed in several rounds (loops) with the same weights; each
round has its own keys and values.
"""

from __future__ import annotations

from dataclasses import replace

from stoker.backends.native.architectures.common import DIVISORS, decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec

_MAX_LAYERS = 512


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The output norm is also applied between two rounds, unless the file says otherwise."""
    num_rounds = model.integer("num_loops", 1, high=_MAX_LAYERS // model.num_layers)
    one_round = layers(model)
    norm = None if model.flag("skip_loop_final_norm", default=False) else model.norm("output_norm")
    with_norm = (*one_round[:-1], replace(one_round[-1], output_norm=norm))
    return decoder(
        model,
        attention_scale=model.optional_number("attention.scale") or model.head_size**-0.5,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=(*with_norm * (num_rounds - 1), *one_round),
        unused=frozenset({DIVISORS}),
    )
