"""phi3: Phi 3 and 4. Fused matrices, partly rotated heads, and LongRoPE with divisors for short and long contexts."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import DecoderSpec, RopePairs

_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`.

    The sliding window of the 4k models is left alone, as libllama does: their files do not say it reliably, and it is
    half of the context.
    """
    scaling = model.rope_scaling()
    is_long = model.context_size > scaling.original_context
    rope = scaled_rope(
        pairs=RopePairs.HALVES,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=scaling,
        divisors=model.rope_divisors(_LONG if is_long else _SHORT),
    )
    return decoder(
        model,
        architecture="phi3",
        ropes=(rope,),
        layers=tuple(layer(model, index) for index in range(model.num_layers)),
        unused=frozenset({_SHORT, _LONG}),
    )
