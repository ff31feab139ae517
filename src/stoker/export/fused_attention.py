"""Attention with ONNX Runtime's `GroupQueryAttention`, which rotates (RoPE), appends in place and masks by itself."""

from __future__ import annotations

import numpy as np

from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer
from stoker.errors import ModelUnsupported
from stoker.export.attention import Heads, rotation_tables
from stoker.export.graph import Graph

_ROTATED_GRANULE = 16


class FusedAttention:
    """Satisfies `Attention`. Everything is computed in the data type of the KV cache.

    Args:
        graph: the graph that nodes are appended to.
        spec: the model.
        heads: its queries, keys and values.
        mask: name of the attention mask, of shape `(batch, total)`: ones, followed by zeros.
        context_size: number of positions in the rotation tables.

    Raises:
        ModelUnsupported: the operator cannot do a rotation of the model.
    """

    def __init__(self, graph: Graph, spec: DecoderSpec, heads: Heads, *, mask: str, context_size: int) -> None:
        self._graph = graph
        self._spec = spec
        self._heads = heads
        for rope in spec.ropes:
            if rope.dim % _ROTATED_GRANULE:
                raise ModelUnsupported(
                    f"GroupQueryAttention cannot rotate {rope.dim} elements of a head, only multiples of "
                    f"{_ROTATED_GRANULE}; choose plain attention"
                )
        self._tables = [
            rotation_tables(graph, index, rope, context_size, heads.dtype) for index, rope in enumerate(spec.ropes)
        ]
        self._lengths = [self._last_positions(mask), self._longest(mask)]

    def layer(self, index: int, layer: Layer, x: str) -> str:
        """See `Attention`."""
        name, spec, pairs = f"layers.{index}.attention", self._spec, self._spec.ropes[layer.rope].pairs
        if layer.query_norm is None and layer.key_norm is None:
            inputs = [self._narrow(self._heads.packed(index, layer, x)), "", ""]
        else:
            inputs = [self._narrow(part) for part in self._heads.apart(index, layer, x)]
        seen = self._graph.contrib(
            "GroupQueryAttention",
            [*inputs, *self._heads.past(index), *self._lengths, *self._tables[layer.rope]],
            [f"{name}.seen", *self._heads.present(index)],
            num_heads=spec.heads.num,
            kv_num_heads=spec.heads.num_kv,
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
            local_window_size=layer.window or -1,
            do_rotary=1,
            rotary_interleaved=int(pairs is RopePairs.ADJACENT),
        )
        return seen if self._heads.dtype == np.float32 else self._graph.cast(seen, np.float32, name)

    def _narrow(self, x: str) -> str:
        if self._heads.dtype == np.float32:
            return x
        return self._graph.cast(x, self._heads.dtype, f"{x}.narrow")

    def _last_positions(self, mask: str) -> str:
        """The last position of each sequence, int32."""
        lengths = self._graph.node("ReduceSum", [mask, self._graph.ints(1)], "lengths", keepdims=0)
        last = self._graph.node("Sub", [lengths, self._graph.ints(1)], "last_positions")
        return self._graph.cast(last, np.int32, "last_positions.int32")

    def _longest(self, mask: str) -> str:
        """The length of the longest sequence, an int32 scalar."""
        shape = self._graph.node("Shape", [mask], "mask.shape")
        longest = self._graph.node("Gather", [shape, self._graph.constant(np.array(1))], "longest", axis=0)
        return self._graph.cast(longest, np.int32, "longest.int32")
