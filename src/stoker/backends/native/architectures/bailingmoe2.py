"""bailingmoe2: Ling and Ring 2.0. The first layers are dense, the others have groups of experts and a shared expert."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, head_norms, layers, rope
from stoker.backends.native.architectures.experts import chosen_as_said, expert_size, layer_behind_dense
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, _layer),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    each = model.integer("expert_shared_feed_forward_length", 0, low=0) or expert_size(model)
    return layer_behind_dense(
        model,
        index,
        shared_size=model.integer("expert_shared_count", low=0) * each,
        routing=chosen_as_said(model, index, Routing.SOFTMAX),
        **head_norms(model, index),
    )
