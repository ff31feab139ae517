"""bert, nomic-bert, nomic-bert-moe, jina-bert-v2, jina-bert-v3: encoders with norms after each addition.

```
x = attention_output_norm(x + attention(x))
x = layer_output_norm(x + feed_forward(x))
```

As layers with norms in front: the norm after a layer is the norm before its successor, and replaces x.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, log2
from typing import Any

from stoker.backends.native.architectures.common import decoder, layer, rope
from stoker.backends.native.architectures.experts import experts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.rope import no_rope
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import Activation, DecoderSpec, Layer, NormKind

_MAX_SLOPE_BITS = 8.0
"""The head with the smallest slope loses 2^-8 of a position."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`: BERT, and XLM-RoBERTa, whose table begins with the first position in these files."""
    positions = model.table("position_embd.weight", model.trained_context)
    ropes = (no_rope(RopePairs.HALVES, 0),)
    return _encoder(model, "bert", ropes=ropes, positions=positions, activation=Activation.GELU_ALONE)


def describe_nomic(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`: a gate with SiLU, and rotations."""
    return _encoder(model, "nomic-bert", ropes=(rope(model, RopePairs.HALVES),))


def describe_nomic_moe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`: each so-many-th layer has experts in place of the feed-forward."""
    period = model.integer("moe_every_n_layers", 0, low=0)

    def make(model: Hyperparameters, index: int, **norms: Any) -> Layer:
        if period and index % period == 1:
            found = experts(model, index, size=model.feed_forward_sizes[index], has_up=False)
            return layer(model, index, experts=found, gate=None, up=None, down=None, **norms)
        return _plain_layer(model, index, experts=None, **norms)

    ropes = (rope(model, RopePairs.HALVES),)
    return _encoder(model, "nomic-bert-moe", ropes=ropes, activation=Activation.GELU_ALONE, make=make)


def describe_jina_v2(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`: scores fall with the distance, by another slope in each head."""
    ropes = (no_rope(RopePairs.HALVES, 0),)
    slopes = _slopes(model.num_heads)
    return _encoder(model, "jina-bert-v2", ropes=ropes, activation=Activation.GELU, distance_slopes=slopes)


def describe_jina_v3(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`: rotations in place of the table of positions."""
    ropes = (rope(model, RopePairs.HALVES),)
    return _encoder(model, "jina-bert-v3", ropes=ropes, activation=Activation.GELU_ALONE)


def _encoder(
    model: Hyperparameters,
    architecture: str,
    *,
    ropes: tuple[Rope, ...],
    activation: Activation = Activation.SILU,
    make: Callable[..., Layer] | None = None,
    **more: Any,
) -> DecoderSpec:
    if make is None:
        make = _plain_layer if activation is Activation.GELU_ALONE else layer
    last = f"blk.{model.num_layers - 1}"
    return decoder(
        model,
        architecture=architecture,
        norm=NormKind.LAYER_BIASED,
        activation=activation,
        ropes=ropes,
        sees_ahead=True,
        replaces_stream=True,
        token_type=model.table("token_types.weight"),
        embedding_norm=_norm(model, "token_embd_norm"),
        output_norm=_norm(model, f"{last}.layer_output_norm"),
        layers=tuple(make(model, index, **_norms(model, index)) for index in range(model.num_layers)),
        **more,
    )


def _norms(model: Hyperparameters, index: int) -> dict[str, Any]:
    """By the names of `Layer`."""
    before = _norm(model, f"blk.{index - 1}.layer_output_norm") if index else None
    return {"attention_norm": before, "feed_forward_norm": _norm(model, f"blk.{index}.attn_output_norm")}


def _norm(model: Hyperparameters, stem: str) -> Norm:
    return Norm(weight=f"{stem}.weight", size=model.hidden_size, bias=f"{stem}.bias")


def _plain_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """Without a gate; the file calls what stands in its place `up`."""
    up = model.linear(f"blk.{index}.ffn_up", model.feed_forward_sizes[index], model.hidden_size)
    return layer(model, index, gate=up, up=None, **more)


def _slopes(num_heads: int) -> tuple[float, ...]:
    """A geometric sequence for the largest power of two of heads, and what lies between for the others."""
    power = 2 ** floor(log2(num_heads))
    first = [2 ** (-_MAX_SLOPE_BITS * (head + 1) / power) for head in range(power)]
    between = [2 ** (-_MAX_SLOPE_BITS / 2 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return (*first, *between)
