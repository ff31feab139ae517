"""From a spec and a layout to what the C++ decoder is told: plain numbers, tuples and tables, no names of tensors.

```
matrix   (type, rows, columns, offset, offset of the bias or -1)     offsets in bytes from the beginning of the memory
norm     offset, or -1 where there is none
```
"""

from __future__ import annotations

from stoker.backends.native.layout import Layout
from stoker.backends.native.spec import DecoderSpec, Layer, Linear, Norm, Rope

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
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size,
        "feed_forward_size": spec.feed_forward_size,
        "norm_eps": spec.norm_eps,
        "activation": spec.activation.value,
        "attention_scale": spec.attention_scale,
        "attention_softcap": spec.attention_softcap,
        "embedding_scale": spec.embedding_scale,
        "logit_softcap": spec.logit_softcap,
        "embedding": _matrix(layout, spec.embedding),
        "head": _matrix(layout, spec.head),
        "output_norm": _norm(layout, spec.output_norm),
        "ropes": [_rope(rope, num_positions) for rope in spec.ropes],
        "layers": [_layer(layout, layer) for layer in spec.layers],
    }


def _layer(layout: Layout, layer: Layer) -> dict[str, object]:
    linears = ("query", "key", "value", "output", "gate", "up", "down")
    norms = ("attention_norm", "query_norm", "key_norm", "post_attention_norm", "feed_forward_norm")
    return {
        **{name: _matrix(layout, getattr(layer, name)) for name in linears},
        **{name: _norm(layout, getattr(layer, name)) for name in (*norms, "post_feed_forward_norm")},
        "rope": layer.rope,
        "window": layer.window or 0,
    }


def _matrix(layout: Layout, linear: Linear) -> tuple[int, int, int, int, int]:
    place = layout.matrices[linear]
    bias = layout.biases[linear].offset if linear.bias else _NOTHING
    return (place.type, place.rows, place.columns, place.offset, bias)


def _norm(layout: Layout, norm: Norm | None) -> int:
    return _NOTHING if norm is None else layout.norms[norm].offset


def _rope(rope: Rope, num_positions: int) -> dict[str, object]:
    return {"pairs": rope.pairs.value, "dim": rope.dim, "table": rope.tables(num_positions)}
