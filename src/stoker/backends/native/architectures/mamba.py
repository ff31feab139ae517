"""mamba, mamba2: models without attention and without feed-forwards."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import WITHOUT_FEED_FORWARD, decoder, layer
from stoker.backends.native.architectures.mamba1 import mamba1
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec


def describe_1(model: Hyperparameters) -> DecoderSpec:
    """Mamba 1, Falcon Mamba. See `describe_decoder`."""
    norm = _plain_norm if model.flag("ssm.dt_b_c_rms", default=False) else None
    return _decoder(model, [mamba1(model, index, norm) for index in range(model.num_layers)])


def describe_2(model: Hyperparameters) -> DecoderSpec:
    """Mamba 2, Codestral Mamba. See `describe_decoder`."""
    return _decoder(model, [mamba2(model, index) for index in range(model.num_layers)])


def _plain_norm(_: str, size: int) -> Norm:
    return Norm(weight=None, size=size)


def _decoder(model: Hyperparameters, mixers: list[dict[str, Any]]) -> DecoderSpec:
    return decoder(
        model,
        ropes=(no_rope(RopePairs.HALVES, 0),),
        layers=tuple(layer(model, index, **mixer, **WITHOUT_FEED_FORWARD) for index, mixer in enumerate(mixers)),
    )
