"""llama: Llama 1 to 3, Mistral, SmolLM and all who borrowed their shape. Llama 3's divisors are in `rope_freqs`."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The converter has already put the elements of each head into adjacent pairs."""
    return decoder(
        model,
        architecture="llama",
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=layers(model),
        unused=frozenset({DIVISORS}),
    )
