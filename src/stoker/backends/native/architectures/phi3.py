"""phi3: Phi 3 and 4. Fused matrices, partly rotated heads, and LongRoPE with divisors for short and long contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.backends.native.architectures.common import (
    LONG_DIVISORS,
    SHORT_DIVISORS,
    decoder,
    layer,
    layers,
    long_rope,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters, make: Callable[[Hyperparameters, int], Layer] = layer, **more: Any) -> DecoderSpec:
    """See `describe_decoder`.

    The sliding window of the 4k models is left alone, as libllama does: their files do not say it reliably, and it is
    half of the context.

    Args:
        model: the file.
        make: a layer from its index.
        more: as in `decoder`.
    """
    return decoder(
        model,
        ropes=(long_rope(model, RopePairs.HALVES),),
        layers=layers(model, make),
        unused=frozenset({SHORT_DIVISORS, LONG_DIVISORS}),
        **more,
    )
