"""smollm3: SmolLM 3. A llama in which each fourth layer rotates nothing."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec

_PERIOD = 4
"""Each so-many-th layer rotates nothing; no file says so."""
_ROTATES, _STANDS = 0, 1
"""Indices of the two ropes."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    rotates = rope(model, RopePairs.ADJACENT)
    ropes = [_ROTATES if (index + 1) % _PERIOD else _STANDS for index in range(model.num_layers)]
    return decoder(
        model,
        ropes=(rotates, no_rope(rotates.pairs, rotates.dim)),
        layers=tuple(layer(model, index, rope=which) for index, which in enumerate(ropes)),
    )
