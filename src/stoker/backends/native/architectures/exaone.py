"""exaone: EXAONE 3. A llama with rotated halves, with Llama 3's divisors in `rope_freqs`."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import DecoderSpec, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rope = scaled_rope(
        pairs=RopePairs.HALVES,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=model.rope_scaling(),
        divisors=model.rope_divisors("rope_freqs.weight"),
    )
    return decoder(
        model,
        architecture="exaone",
        ropes=(rope,),
        layers=tuple(layer(model, index) for index in range(model.num_layers)),
        unused=frozenset({"rope_freqs.weight"}),
    )
