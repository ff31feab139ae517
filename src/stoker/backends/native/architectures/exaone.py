"""exaone: EXAONE 3. A llama with NeoX-style RoPE (halves), and Llama 3's divisors in `rope_freqs`."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES, divisors=DIVISORS),),
        layers=layers(model),
        unused=frozenset({DIVISORS}),
    )
