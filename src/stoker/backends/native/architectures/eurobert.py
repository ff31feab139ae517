"""eurobert: EuroBERT. A llama with bidirectional attention."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.HALVES),)
    return decoder(model, sees_ahead=True, ropes=ropes, layers=layers(model))
