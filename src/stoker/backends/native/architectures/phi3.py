"""phi3: Phi 3 and 4. Fused matrices, RoPE on a part of heads, and LongRoPE, with divisors for two context lengths."""

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

    The sliding window of the 4k models is ignored, as in libllama: their files do not say reliably that they have
    one, and it is half of the context.

    Args:
        model: the file.
        make: makes a layer from its index.
        more: see `decoder`.
    """
    return decoder(
        model,
        ropes=(long_rope(model, RopePairs.HALVES),),
        layers=layers(model, make),
        unused=frozenset({SHORT_DIVISORS, LONG_DIVISORS}),
        **more,
    )
