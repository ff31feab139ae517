"""llama: Llama 1 to 3, Mistral, SmolLM and all who borrowed their shape. Llama 3's divisors are in `rope_freqs`."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import DecoderSpec, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. The converter has already put the elements of each head into adjacent pairs."""
    rope = scaled_rope(
        pairs=RopePairs.ADJACENT,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=model.rope_scaling(),
        divisors=model.rope_divisors("rope_freqs.weight"),
    )
    return decoder(
        model,
        architecture="llama",
        ropes=(rope,),
        layers=tuple(layer(model, index) for index in range(model.num_layers)),
        unused=frozenset({"rope_freqs.weight"}),
    )
