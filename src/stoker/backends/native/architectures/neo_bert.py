"""neo-bert: NeoBERT. A llama with bidirectional attention, and another name for its last norm."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        sees_ahead=True,
        ropes=(rope(model, RopePairs.ADJACENT),),
        output_norm=model.norm("enc.output_norm"),
        layers=layers(model),
    )
