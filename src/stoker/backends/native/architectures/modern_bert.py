"""modern-bert: norms before attention and feed-forward, gates, and windows in all but every third layer."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import decoder, layer, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import Activation, DecoderSpec, Layer, NormKind

_PERIOD = 3
"""In each group of this many layers, the first has no window."""
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""
_ACTIVATIONS = {"gelu": Activation.GELU, "silu": Activation.SILU, "swish": Activation.SILU, "swiglu": Activation.SILU}


def describe_modern_bert(model: Hyperparameters) -> DecoderSpec:
    """ModernBERT. The first layer usually has no norm before attention."""
    window = model.integer("attention.sliding_window", 0, low=0, high=2**31 - 1)
    listed = model.flags_of_layers("attention.sliding_window_pattern")
    period = 0 if listed else model.integer("attention.sliding_window_pattern", _PERIOD, low=0)
    kinds = listed or [period == 0 or bool(index % period) for index in range(model.num_layers)]
    base = model.rope_base("rope.freq_base_swa")
    return decoder(
        model,
        norm=NormKind.LAYER,
        activation=_activation(model),
        sees_ahead=True,
        embedding_norm=model.norm("token_embd_norm"),
        ropes=(rope(model, RopePairs.HALVES), rope(model, RopePairs.HALVES, base=base)),
        layers=tuple(_layer(model, index, window if kinds[index] else 0) for index in range(model.num_layers)),
    )


def _layer(model: Hyperparameters, index: int, window: int) -> Layer:
    norm = f"blk.{index}.attn_norm"
    more: dict[str, Any] = {} if model.has(f"{norm}.weight") or index else {"attention_norm": None}
    return layer(model, index, window=window or None, rope=_WINDOW if window else _EVERYTHING, **more)


def _activation(model: Hyperparameters) -> Activation:
    name = model.text("hidden_activation", "gelu")
    return _ACTIVATIONS.get(name) or model.refuse(f"its activation `{name}`")
