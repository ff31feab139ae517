"""phi3: Phi 3 and 4. Fused matrices, partly rotated heads, and LongRoPE with divisors for short and long contexts."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec

_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`.

    The sliding window of the 4k models is left alone, as libllama does: their files do not say it reliably, and it is
    half of the context.
    """
    is_long = model.context_size > model.rope_scaling().original_context
    return decoder(
        model,
        architecture="phi3",
        ropes=(rope(model, RopePairs.HALVES, divisors=_LONG if is_long else _SHORT),),
        layers=layers(model),
        unused=frozenset({_SHORT, _LONG}),
    )
