"""From a spec and a layout to what the C++ decoder is told: plain numbers, tuples and tables, no names of tensors.

```
matrix   (type, rows, columns, offset, offset of the bias or -1), or None where there is none
         offsets in bytes from the beginning of the memory
norm     offset, or -1 where there is none
```
"""

from __future__ import annotations

from stoker.backends.native.layout import Layout
from stoker.backends.native.spec import DecoderSpec, Experts, Layer, Linear, Norm, Rope

_NOTHING = -1


def describe(spec: DecoderSpec, layout: Layout, num_positions: int) -> dict[str, object]:
    """The description that `stoker._native.Decoder` takes.

    Args:
        spec: the model.
        layout: where its weights lie.
        num_positions: longest sequence, for the tables of rotations.
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
        "logit_softcap": spec.logit_softcap,
        "embedding": _matrix(layout, spec.embedding),
        "head": _matrix(layout, spec.head),
        "output_norm": _norm(layout, spec.output_norm),
        "query_scales": None if spec.query_scales is None else spec.query_scales.table(num_positions),
        "ropes": [_rope(rope, num_positions) for rope in spec.ropes],
        "layers": [_layer(layout, layer) for layer in spec.layers],
    }


def _layer(layout: Layout, layer: Layer) -> dict[str, object]:
    linears = ("query", "key", "value", "output", "gate", "up", "down")
    norms = ("attention_norm", "query_norm", "key_norm", "sinks", "post_attention_norm", "feed_forward_norm")
    return {
        "num_heads": layer.heads.num,
        "num_kv_heads": layer.heads.num_kv,
        "head_size": layer.heads.size,
        "feed_forward_size": layer.feed_forward_size,
        "head_norms": layer.head_norms.value,
        "is_parallel": layer.is_parallel,
        "experts": None if layer.experts is None else _experts(layout, layer.experts),
        **{name: _matrix(layout, getattr(layer, name)) for name in linears},
        **{name: _norm(layout, getattr(layer, name)) for name in (*norms, "post_feed_forward_norm")},
        "rope": layer.rope,
        "window": layer.window or 0,
    }


def _experts(layout: Layout, experts: Experts) -> dict[str, object]:
    linears = ("router", "gate", "up", "down", "shared_gate")
    plain = ("count", "used", "size", "num_groups", "used_groups", "is_normalised", "scale")
    return {
        **{name: getattr(experts, name) for name in plain},
        **{name: _matrix(layout, getattr(experts, name)) for name in linears},
        "routing": experts.routing.value,
        "selection_bias": _norm(layout, experts.selection_bias),
    }


def _matrix(layout: Layout, linear: Linear | None) -> tuple[int, int, int, int, int] | None:
    if linear is None:
        return None
    place = layout.matrices[linear]
    bias = layout.biases[linear].offset if linear.bias else _NOTHING
    return (place.type, place.rows, place.columns, place.offset, bias)


def _norm(layout: Layout, norm: Norm | None) -> int:
    return _NOTHING if norm is None else layout.norms[norm].offset


def _rope(rope: Rope, num_positions: int) -> dict[str, object]:
    return {"pairs": rope.pairs.value, "dim": rope.dim, "table": rope.tables(num_positions)}
