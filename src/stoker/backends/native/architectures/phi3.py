"""phi3: Phi 3 and 4. Fused matrices, partly rotated heads, and LongRoPE with divisors for short and long contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer

_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def describe(model: Hyperparameters, make: Callable[[Hyperparameters, int], Layer] = layer, **more: Any) -> DecoderSpec:
    """See `describe_decoder`.

    The sliding window of the 4k models is left alone, as libllama does: their files do not say it reliably, and it is
    half of the context.

    Args:
        model: the file.
        make: a layer from its index.
        more: as in `decoder`.
    """
    is_long = model.context_size > model.rope_scaling().original_context
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES, divisors=_LONG if is_long else _SHORT),),
        layers=layers(model, make),
        unused=frozenset({_SHORT, _LONG}),
        **more,
    )
