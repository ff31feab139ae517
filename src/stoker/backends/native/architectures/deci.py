"""deci: a llama whose layers differ: some have one matrix in place of attention, others lack attention, the
feed-forward, or both.

A layer without a feed-forward still has its attention, as in the published models; libllama skips such a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stoker.backends.native.architectures.common import DIVISORS, WITHOUT_FEED_FORWARD, decoder, layer, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_deci(model: Hyperparameters) -> DecoderSpec:
    """DeciLM, Llama 3.x Nemotron."""
    return decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=tuple(_layers(model)),
        unused=frozenset({DIVISORS}),
    )


def _layers(model: Hyperparameters) -> Iterator[Layer]:
    """The layers that are not empty."""
    for index, size in enumerate(model.feed_forward_sizes):
        if size or model.heads[index].num:
            yield layer(model, index, **_mixer(model, index), **({} if size else WITHOUT_FEED_FORWARD))


def _mixer(model: Hyperparameters, index: int) -> dict[str, Any]:
    """What replaces attention, as fields of `Layer`; empty = plain attention."""
    heads = model.heads[index]
    if heads.num and heads.num_kv:
        return {}
    without: dict[str, Any] = dict.fromkeys(("heads", "recurrence", "query", "key", "value", "output"))
    if not heads.num:
        return without | {"attention_norm": None}
    only = model.linear(f"blk.{index}.attn_output", model.hidden_size, model.hidden_size)
    return without | {"query": replace(only, bias=None)}
