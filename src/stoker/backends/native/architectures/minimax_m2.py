"""minimax-m2: MiniMax M2. Sigmoid routing with a bias, and norms over all heads of queries and of keys together."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, head_norms, layers, rope
from stoker.backends.native.architectures.experts import chosen_as_said, expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.spec import DecoderSpec, HeadNorms, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    ropes = (rope(model, RopePairs.HALVES),)
    return decoder(model, ropes=ropes, layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    heads = model.heads[index]
    return expert_layer(
        model,
        index,
        size=model.feed_forward_sizes[index],
        routing=chosen_as_said(model, index, Routing.SIGMOID) | {"is_normalised": True},
        **head_norms(model, index, heads.num * heads.size, heads.num_kv * heads.size),
        head_norms=HeadNorms.WHOLE_ROW,
    )
