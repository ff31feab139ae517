"""Describes a model to the C++ decoder, from its spec and layout: plain numbers, tuples and tables, no tensor names.

```
matrix   (type, rows, columns, offset, offset of the bias or -1, that of the scale or -1), or None where there is none
         offsets in bytes from the beginning of the memory
norm     offset, or -1 where there is none
```
"""

from __future__ import annotations

from dataclasses import astuple
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from stoker.backends.native.layer_parts import Experts, Injection, Latent, Linear, Norm, Recurrence, Streams, StreamUse
from stoker.backends.native.layout import Layout
from stoker.backends.native.rotation import Rope
from stoker.backends.native.spec import DecoderSpec, Heads, Join, Layer, LayerInputs

_Matrix: TypeAlias = tuple[int, int, int, int, int, int]

_NOTHING = -1
_XIELU_NUMBERS = 4
_NO_HEADS = Heads(num=0, num_kv=0, size=0)


def describe(spec: DecoderSpec, layout: Layout, num_positions: int) -> dict[str, object]:
    """The description that `stoker._native.Decoder` takes.

    Args:
        spec: the model.
        layout: where its weights are in packed memory.
        num_positions: length of the longest sequence, which bounds the tables of rotations.
    """
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "norm_eps": spec.norm_eps,
        "norm": spec.norm.value,
        "activation": spec.activation.value,
        "attention_scale": spec.attention_scale,
        "attention_softcap": spec.attention_softcap,
        "embedding_scale": spec.embedding_scale,
        "input_scale": spec.input_scale,
        "input_limit": spec.input_limit,
        "deep_layers": spec.deep_layers,
        "logit_softcap": spec.logit_softcap,
        "embedding": _end(layout, spec, "embedding"),
        "head": _end(layout, spec, "head"),
        "lent": sorted(spec.lent),
        "extracted_layers": list(spec.extracted_layers),
        "output_norm": _norm(layout, spec.output_norm),
        "query_scales": None if spec.query_scales is None else spec.query_scales.table(num_positions),
        "distance_slopes": None if spec.distance_slopes is None else np.array(spec.distance_slopes, dtype=np.float32),
        "num_embedded_positions": 0 if spec.positions is None else spec.positions.num_stacked,
        **{name: _norm(layout, getattr(spec, name)) for name in ("positions", "token_type", "embedding_norm")},
        "sees_ahead": spec.sees_ahead,
        "replaces_stream": spec.replaces_stream,
        "ropes": [_rope(rope, num_positions) for rope in spec.ropes],
        "layer_inputs": None if spec.layer_inputs is None else _layer_inputs(layout, spec.layer_inputs),
        "streams": None if spec.streams is None else _streams(layout, spec.streams),
        "join": None if spec.join is None else _join(layout, spec.join),
        "layers": [_layer(layout, layer, index) for index, layer in enumerate(spec.layers)],
    }


def _layer_inputs(layout: Layout, inputs: LayerInputs) -> dict[str, object]:
    return {
        "size": inputs.size,
        "table": _matrix(layout, inputs.table),
        "projection": _matrix(layout, inputs.projection),
        "norm": _norm(layout, inputs.norm),
        "norm_eps": inputs.norm_eps,
        "table_scale": inputs.table_scale,
    }


def _streams(layout: Layout, streams: Streams) -> dict[str, object]:
    return {"split": _matrix(layout, streams.split), "join": _matrix(layout, streams.join)}


def _join(layout: Layout, join: Join) -> dict[str, object]:
    return {
        **{name: getattr(join, name) for name in ("hidden_size", "keeps_norm", "gives_sum", "first_position")},
        **{name: _matrix(layout, getattr(join, name)) for name in ("projection", "fuse", "give")},
        **{name: _norm(layout, getattr(join, name)) for name in ("embedding_norm", "hidden_norm", "fuse_norm")},
    }


def _layer(layout: Layout, layer: Layer, index: int) -> dict[str, object]:
    heads = layer.heads or _NO_HEADS
    linears = ("query", "key", "value", "output", "mixed_gate", "gate", "up", "down")
    before = ("attention_norm", "query_norm", "key_norm", "sinks", "mixed_norm", "post_attention_norm")
    norms = (*before, "feed_forward_norm", "inner_norm", "post_feed_forward_norm", "output_norm")
    return {
        "num_heads": heads.num,
        "num_kv_heads": heads.num_kv,
        "head_size": heads.size,
        "recurrence": None if layer.recurrence is None else _recurrence(layout, layer.recurrence),
        "feed_forward_size": layer.feed_forward_size,
        "head_norms": layer.head_norms.value,
        "norms_values": layer.norms_values,
        "latent": None if layer.latent is None else _latent(layout, layer.latent),
        "kv_layer": index if layer.kv_layer is None else layer.kv_layer,
        "lent_layer": _NOTHING if layer.lent_layer is None else layer.lent_layer,
        **_injection(layout, layer.injection),
        "streams": None if layer.streams is None else _stream_use(layout, layer.streams),
        "gate_cut": -inf if layer.gate_cut is None else layer.gate_cut,
        "output_scale": layer.output_scale,
        "is_parallel": layer.is_parallel,
        "is_beside": layer.is_beside,
        "xielu": (0.0,) * _XIELU_NUMBERS if layer.xielu is None else astuple(layer.xielu),
        "experts": None if layer.experts is None else _experts(layout, layer.experts),
        **{name: _matrix(layout, getattr(layer, name)) for name in linears},
        **{name: _norm(layout, getattr(layer, name)) for name in norms},
        "rope": layer.rope,
        "window": layer.window or 0,
        "is_chunked": layer.is_chunked,
        "scales_queries": layer.scales_queries,
    }


def _latent(layout: Layout, latent: Latent) -> dict[str, object]:
    return {
        **{name: getattr(latent, name) for name in ("size", "plain", "rotated", "value")},
        **{name: _matrix(layout, getattr(latent, name)) for name in ("narrow", "wide", "out")},
        **{name: _norm(layout, getattr(latent, name)) for name in ("query_norm", "norm")},
    }


def _stream_use(layout: Layout, use: StreamUse) -> dict[str, object]:
    return {
        **{name: _matrix(layout, getattr(use, name)) for name in ("narrow", "wide")},
        **{
            name: _norm(layout, getattr(use, name))
            for name in ("router_norm", "router", "predict", "correct", "scale", "norm")
        },
    }


def _injection(layout: Layout, injection: Injection | None) -> dict[str, object]:
    return {
        "inject_gate": None if injection is None else _matrix(layout, injection.gate),
        "inject_output": None if injection is None else _matrix(layout, injection.output),
        "inject_norm": _norm(layout, None if injection is None else injection.norm),
    }


def _recurrence(layout: Layout, recurrence: Recurrence) -> dict[str, object]:
    plain = ("taps", "num_heads", "num_key_heads", "key_size", "value_size", "are_interleaved", "norm_size", "norm_eps")
    norms = ("convolution", "convolution_bias", "step_bias", "decay_rate", "skip", "norm")
    norms += ("low_norm", "key_norm", "query_norm")
    linears = ("decay", "beta", "low", "wide_decay", "wide_gate")
    return {
        "mixer": recurrence.mixer.value,
        **{name: getattr(recurrence, name) for name in plain},
        **{name: _norm(layout, getattr(recurrence, name)) for name in norms},
        **{name: _matrix(layout, getattr(recurrence, name)) for name in linears},
    }


def _experts(layout: Layout, experts: Experts) -> dict[str, object]:
    linears = ("router", "gate", "up", "down", "shared_gate")
    plain = ("count", "used", "size", "num_groups", "used_groups", "is_normalised", "scale", "weighs_input", "is_ahead")
    norms = ("selection_bias", "router_norm", "norm", "block_norm", "post_norm", "output_scales")
    return {
        **{name: getattr(experts, name) for name in plain},
        **{name: _matrix(layout, getattr(experts, name)) for name in linears},
        "routing": experts.routing.value,
        **{name: _norm(layout, getattr(experts, name)) for name in norms},
    }


def _matrix(layout: Layout, linear: Linear | None) -> _Matrix | None:
    if linear is None:
        return None
    place = layout.matrices[linear]
    bias = layout.biases[linear].offset if linear.bias else _NOTHING
    scale = layout.scales[linear].offset if linear.scale else _NOTHING
    return (place.type, place.rows, place.columns, place.offset, bias, scale)


def _end(layout: Layout, spec: DecoderSpec, name: Literal["embedding", "head"]) -> _Matrix | None:
    if name not in spec.lent:
        return _matrix(layout, getattr(spec, name))
    place = layout.lent[name]
    return (place.type, place.rows, place.columns, place.offset, _NOTHING, _NOTHING)


def _norm(layout: Layout, norm: Norm | None) -> int:
    return _NOTHING if norm is None else layout.norms[norm].offset


def _rope(rope: Rope, num_positions: int) -> dict[str, object]:
    return {"pairs": rope.pairs.value, "dim": rope.dim, "table": rope.tables(num_positions), "axes": list(rope.axes)}
