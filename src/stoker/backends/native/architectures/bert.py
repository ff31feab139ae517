"""bert, nomic-bert, nomic-bert-moe, jina-bert-v2, jina-bert-v3: encoders with norms after each residual addition.

```
x = attention_output_norm(x + attention(x))
x = layer_output_norm(x + feed_forward(x))
```

Described as layers with norms before their parts: the norm after a layer is the first norm of the next layer. The
results of norms replace x in the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.backends.native.architectures.common import decoder, distance_slopes, layer, layer_without_gate, rope
from stoker.backends.native.architectures.experts import experts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rope import Rope, no_rope
from stoker.backends.native.spec import Activation, DecoderSpec, Layer, NormKind


def describe_bert(model: Hyperparameters) -> DecoderSpec:
    """BERT, MiniLM, BGE, XLM-RoBERTa, bge-m3. The table of positions starts at position 0."""
    positions = model.table("position_embd.weight", model.trained_context)
    ropes = (no_rope(RopePairs.HALVES, 0),)
    return _encoder(model, ropes=ropes, positions=positions, activation=Activation.GELU_ALONE)


def describe_nomic_bert(model: Hyperparameters) -> DecoderSpec:
    """Nomic Embed 1. A feed-forward with a SiLU gate, and RoPE."""
    return _encoder(model, ropes=(rope(model, RopePairs.HALVES),))


def describe_nomic_bert_moe(model: Hyperparameters) -> DecoderSpec:
    """Nomic Embed 2. RoPE; of every `moe_every_n_layers` layers, the second has experts and no dense feed-forward."""
    period = model.integer("moe_every_n_layers", 0, low=0)

    def make(model: Hyperparameters, index: int, **norms: Any) -> Layer:
        if period and index % period == 1:
            found = experts(model, index, size=model.feed_forward_sizes[index], has_up=False)
            return layer(model, index, experts=found, gate=None, up=None, down=None, **norms)
        return layer_without_gate(model, index, experts=None, **norms)

    ropes = (rope(model, RopePairs.HALVES),)
    return _encoder(model, ropes=ropes, activation=Activation.GELU_ALONE, make=make)


def describe_jina_bert_v2(model: Hyperparameters) -> DecoderSpec:
    """Jina Embeddings 2. ALiBi in place of the table of positions, and a GELU gate."""
    ropes = (no_rope(RopePairs.HALVES, 0),)
    slopes = distance_slopes(model.num_heads)
    return _encoder(model, ropes=ropes, activation=Activation.GELU, distance_slopes=slopes)


def describe_jina_bert_v3(model: Hyperparameters) -> DecoderSpec:
    """Jina Embeddings 3. RoPE in place of the table of positions."""
    ropes = (rope(model, RopePairs.HALVES),)
    return _encoder(model, ropes=ropes, activation=Activation.GELU_ALONE)


def _encoder(
    model: Hyperparameters,
    *,
    ropes: tuple[Rope, ...],
    activation: Activation = Activation.SILU,
    make: Callable[..., Layer] | None = None,
    **more: Any,
) -> DecoderSpec:
    if make is None:
        make = layer_without_gate if activation is Activation.GELU_ALONE else layer
    last = f"blk.{model.num_layers - 1}"
    return decoder(
        model,
        norm=NormKind.LAYER_BIASED,
        activation=activation,
        ropes=ropes,
        sees_ahead=True,
        replaces_stream=True,
        token_type=model.table("token_types.weight"),
        embedding_norm=model.biased_norm("token_embd_norm"),
        output_norm=model.biased_norm(f"{last}.layer_output_norm"),
        layers=tuple(make(model, index, **_norms(model, index)) for index in range(model.num_layers)),
        **more,
    )


def _norms(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The norms of a layer, as fields of `Layer`."""
    before = model.biased_norm(f"blk.{index - 1}.layer_output_norm") if index else None
    return {"attention_norm": before, "feed_forward_norm": model.biased_norm(f"blk.{index}.attn_output_norm")}
