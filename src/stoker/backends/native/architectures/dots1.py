"""dots1: dots.llm1. The first layers are dense, the others have experts and a shared expert; norms over heads."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, head_norms, layers, rope
from stoker.backends.native.architectures.experts import chosen_as_said, layer_behind_dense, size_of_shared
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.HALVES),)
    return decoder(model, ropes=ropes, layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    routing = chosen_as_said(model, index, Routing.SIGMOID)
    return layer_behind_dense(
        model, index, shared_size=size_of_shared(model), routing=routing, **head_norms(model, index)
    )
