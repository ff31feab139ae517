"""deci: a llama whose layers differ: some have one matrix in place of attention, others lack attention, the
feed-forward, or both.

Where only the feed-forward is missing, attention counts, as in the published models; libllama leaves such a layer out.
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
    """The layers that have something in them."""
    for index, size in enumerate(model.feed_forward_sizes):
        if size or model.heads[index].num:
            yield layer(model, index, **_mixer(model, index), **({} if size else WITHOUT_FEED_FORWARD))


def _mixer(model: Hyperparameters, index: int) -> dict[str, Any]:
    """By the names of `Layer`; nothing = plain attention."""
    heads = model.heads[index]
    if heads.num and heads.num_kv:
        return {}
    without: dict[str, Any] = dict.fromkeys(("heads", "recurrence", "query", "key", "value", "output"))
    if not heads.num:
        return without | {"attention_norm": None}
    only = model.linear(f"blk.{index}.attn_output", model.hidden_size, model.hidden_size)
    return without | {"query": replace(only, bias=None)}
