"""internlm2: InternLM 2 and 2.5. A llama; the converter has taken its fused matrices apart."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.rope import scaled_rope
from stoker.backends.native.spec import DecoderSpec, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rope = scaled_rope(
        pairs=RopePairs.ADJACENT,
        dim=model.rope_dim(),
        base=model.rope_base(),
        scaling=model.rope_scaling(),
    )
    return decoder(
        model,
        architecture="internlm2",
        ropes=(rope,),
        layers=tuple(layer(model, index) for index in range(model.num_layers)),
    )
