"""gemma3n: four residual streams per token, of which a layer computes one (AltUp); a low-rank branch parallel to
attention (LAuReL); inputs for each layer; layers that share keys and values; sparse activations in the first layers.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from stoker.backends.native.architectures.common import (
    decoder,
    head_norms,
    layer_between_norms,
    layers,
    plain_scaling,
    rope,
    windowed_layers,
)
from stoker.backends.native.architectures.gemma4 import injection, layer_inputs, shared_keys
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Linear, Norm, Streams, StreamUse
from stoker.backends.native.spec import Activation, DecoderSpec, Layer

_PERIOD = 5
"""In each group of this many layers, the last has no window."""
_WITH_KEYS, _WITH_CUT = 20, 10
"""Defaults if the file lacks them: numbers of layers with their own keys and values, and with sparse activations."""
_CUT = 1.6448533535003662
"""In a normal distribution, 5 % of the numbers exceed the mean by this many standard deviations."""
_SOFTCAP = 30.0
_ROW_GRANULE = 32
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe_gemma3n(model: Hyperparameters) -> DecoderSpec:
    """The text part of Gemma 3n."""
    num, active = model.integer("altup.num_inputs", Streams.count), model.integer("altup.active_idx", 0, low=0)
    if num != Streams.count or active:
        model.refuse(f"it has {num} streams and computes with number {active} ({Streams.count} and the first can)")
    inputs = layer_inputs(model)
    if inputs is None:
        model.fail("its tokens have nothing for each layer")
    return decoder(
        model,
        activation=Activation.GELU_TANH,
        attention_scale=1.0,
        embedding_scale=sqrt(model.hidden_size),
        logit_softcap=model.optional_number("final_logit_softcapping") or _SOFTCAP,
        ropes=(
            rope(model, RopePairs.HALVES),
            rope(model, RopePairs.HALVES, base=model.rope_base("rope.freq_base_swa"), scaling=plain_scaling(model)),
        ),
        layers=layers(model, _layer),
        layer_inputs=inputs,
        streams=Streams(split=_squares(model, "altup_proj"), join=_squares(model, "altup_unembd_proj")),
        unused=frozenset(
            f"blk.{index}.attn_{part}.weight"
            for index in range(_first_shared(model), model.num_layers)
            for part in ("k", "v", "k_norm")
        ),
    )


def _squares(model: Hyperparameters, stem: str) -> Linear:
    others, hidden = Streams.count - 1, model.hidden_size
    return Linear(weight=f"{stem}.weight", num_rows=others * hidden, num_columns=hidden, num_stacked=others)


def _first_shared(model: Hyperparameters) -> int:
    """Index of the first layer without keys and values of its own."""
    usual = max(0, model.num_layers - _WITH_KEYS)
    return model.num_layers - model.integer("attention.shared_kv_layers", usual, low=0, high=model.num_layers)


def _layer(model: Hyperparameters, index: int) -> Layer:
    windowed, first = windowed_layers(model, _PERIOD), _first_shared(model)
    is_windowed = windowed[index]
    more: dict[str, Any] = {
        **head_norms(model, index),
        **(shared_keys(model, index, first, windowed) if index >= first else {}),
        **injection(model, index),
        "norms_values": True,
        "rope": _WINDOW if is_windowed else _EVERYTHING,
        "window": model.integer("attention.sliding_window", high=2**31 - 1) if is_windowed else None,
        "streams": _streams(model, index),
        "gate_cut": _gate_cut(model, index),
    }
    return layer_between_norms(model, index, **more)


def _gate_cut(model: Hyperparameters, index: int) -> float | None:
    if not model.lists("activation_sparsity_scale"):
        return _CUT if index < _WITH_CUT else None
    cut = model.numbers_of_layers(f"{model.architecture}.activation_sparsity_scale", none=-inf)[index]
    return None if cut == -inf else cut


def _streams(model: Hyperparameters, index: int) -> StreamUse:
    block, count, hidden = f"blk.{index}", Streams.count, model.hidden_size
    rank = model.num_rows(f"{block}.laurel_l.weight") if model.has(f"{block}.laurel_l.weight") else _ROW_GRANULE
    if rank % _ROW_GRANULE:
        model.refuse(f"a part of rank {rank} beside attention (multiples of {_ROW_GRANULE} can)")
    return StreamUse(
        router_norm=Norm(weight=f"{block}.altup_router_norm.weight", size=hidden, scale=1 / hidden),
        router=model.vector(f"{block}.altup_router.weight", count * hidden, num_stacked=count),
        predict=model.vector(f"{block}.altup_predict_coef.weight", count**3, num_stacked=count**2),
        correct=model.vector(f"{block}.altup_correct_coef.weight", count**2, num_stacked=count),
        scale=model.norm(f"{block}.altup_correct_scale"),
        narrow=model.linear(f"{block}.laurel_l", rank, hidden),
        wide=model.linear(f"{block}.laurel_r", hidden, rank),
        norm=model.norm(f"{block}.laurel_post_norm"),
    )
