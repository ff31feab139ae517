"""smollm3: SmolLM 3. A llama without RoPE in every fourth layer."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec

_PERIOD = 4
"""In each group of this many layers, the last has no RoPE; no file says so."""
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rotates = rope(model, RopePairs.ADJACENT)
    ropes = [_ROTATES if (index + 1) % _PERIOD else _STANDS for index in range(model.num_layers)]
    return decoder(
        model,
        ropes=(rotates, no_rope(rotates.pairs, rotates.dim)),
        layers=tuple(layer(model, index, rope=which) for index, which in enumerate(ropes)),
    )
