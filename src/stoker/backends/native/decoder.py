"""Describes a model to the C++ decoder, from its spec and layout: plain numbers, tuples and tables, no tensor names.

```
matrix   (type, rows, columns, offset, offset of the bias or -1, that of the scale or -1), or None where there is none
         offsets in bytes from the beginning of the memory
norm     offset, or -1 where there is none
```
"""

from __future__ import annotations

from dataclasses import astuple, fields
from enum import Enum
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from stoker.backends.native.layer_parts import Linear, Norm, Parts
from stoker.backends.native.layout import Layout
from stoker.backends.native.rope import Rope
from stoker.backends.native.spec import DecoderSpec, Heads, Layer

_Matrix: TypeAlias = tuple[int, int, int, int, int, int]

_NOTHING = -1
_XIELU_NUMBERS = 4
_NORMS = ("Norm", "Norm | None")
"""Types of fields, as they are written: a missing norm is not None."""
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
        "layer_inputs": None if spec.layer_inputs is None else _parts(layout, spec.layer_inputs),
        "streams": None if spec.streams is None else _parts(layout, spec.streams),
        "join": None if spec.join is None else _parts(layout, spec.join),
        "layers": [_layer(layout, layer, index) for index, layer in enumerate(spec.layers)],
    }


def _layer(layout: Layout, layer: Layer, index: int) -> dict[str, object]:
    heads, injection = layer.heads or _NO_HEADS, layer.injection
    return _parts(layout, layer) | {
        "num_heads": heads.num,
        "num_kv_heads": heads.num_kv,
        "head_size": heads.size,
        "feed_forward_size": layer.feed_forward_size,
        "kv_layer": index if layer.kv_layer is None else layer.kv_layer,
        "lent_layer": _NOTHING if layer.lent_layer is None else layer.lent_layer,
        "inject_gate": None if injection is None else _matrix(layout, injection.gate),
        "inject_output": None if injection is None else _matrix(layout, injection.output),
        "inject_norm": _norm(layout, None if injection is None else injection.norm),
        "gate_cut": -inf if layer.gate_cut is None else layer.gate_cut,
        "xielu": (0.0,) * _XIELU_NUMBERS if layer.xielu is None else astuple(layer.xielu),
        "window": layer.window or 0,
    }


def _parts(layout: Layout, parts: Parts | Layer) -> dict[str, object]:
    """The fields by their names: matrices and norms as above, enumerations by their values."""
    found: dict[str, object] = {}
    for field in fields(parts):
        value = getattr(parts, field.name)
        if field.type in _NORMS:
            value = _norm(layout, value)
        elif isinstance(value, Linear):
            value = _matrix(layout, value)
        elif isinstance(value, Parts):
            value = _parts(layout, value)
        elif isinstance(value, Enum):
            value = value.value
        found[field.name] = value
    return found


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
