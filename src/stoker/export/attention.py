"""What both kinds of attention share: heads, the KV cache as inputs and outputs of the graph, and rotation tables.

```
past_key_values.N.key, .value   (batch, kv heads, past, head size)   ->   present.N.key, .value   (…, past + new, …)
```
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from stoker.backends.native.layer_parts import Linear, Norm
from stoker.backends.native.rope import Rope
from stoker.backends.native.spec import DecoderSpec, Layer
from stoker.export.graph import Graph
from stoker.export.operators import Operators
from stoker.export.options import KVType
from stoker.export.projections import Projections

BATCH, NEW, PAST, TOTAL = "batch_size", "sequence_length", "past_sequence_length", "total_sequence_length"


class Attention(Protocol):
    """The attention of one graph."""

    def layer(self, index: int, layer: Layer, x: str) -> str:
        """Appends the attention of a layer to its normed input `x`. Returns the outputs of all heads, concatenated."""
        ...


class Heads:
    """Queries, keys and values of one graph, and the inputs and outputs for its KV cache.

    Args:
        graph: the graph that nodes are appended to.
        spec: the model.
        projections: compute queries, keys and values.
        operators: compute the norms of heads.
        kv_type: data type of the KV cache in the graph's inputs and outputs.
    """

    def __init__(
        self, graph: Graph, spec: DecoderSpec, projections: Projections, operators: Operators, kv_type: KVType
    ) -> None:
        self.dtype = np.float32 if kv_type == "f32" else np.float16
        self._graph = graph
        self._spec = spec
        self._projections = projections
        self._operators = operators

    def past(self, index: int) -> list[str]:
        """Declares the KV cache of a layer as inputs: keys, values."""
        dims = (BATCH, self._spec.heads.num_kv, PAST, self._spec.heads.size)
        return [self._graph.input(f"past_key_values.{index}.{part}", self.dtype, dims) for part in ("key", "value")]

    def present(self, index: int) -> list[str]:
        """Declares the extended KV cache of a layer as outputs: keys, values."""
        dims = (BATCH, self._spec.heads.num_kv, TOTAL, self._spec.heads.size)
        return [self._graph.output(f"present.{index}.{part}", self.dtype, dims) for part in ("key", "value")]

    def packed(self, index: int, layer: Layer, x: str) -> str:
        """Queries, keys and values concatenated in the last dimension, for a layer without norms of heads."""
        return self._projections.packed(x, _inputs(layer), f"layers.{index}.query_key_value")

    def apart(self, index: int, layer: Layer, x: str) -> list[str]:
        """Queries, keys and values, each of shape `(batch, new, heads * head size)`; normed if the layer has norms."""
        names = [f"layers.{index}.{part}" for part in ("query", "key", "value")]
        query, key, value = self._projections.each(x, _inputs(layer), names)
        return [self._normed(query, layer.query_norm), self._normed(key, layer.key_norm), value]

    def split(self, x: str) -> str:
        """Gives heads a dimension of their own, the third."""
        return self._graph.node("Reshape", [x, self._graph.ints(0, 0, -1, self._spec.heads.size)], f"{x}.heads")

    def joined(self, x: str, num_heads: int, name: str) -> str:
        """Concatenates heads in the third dimension again."""
        return self._graph.node("Reshape", [x, self._graph.ints(0, 0, num_heads * self._spec.heads.size)], name)

    def _normed(self, x: str, norm: Norm | None) -> str:
        if norm is None:
            return x
        normed = self._operators.norm(self.split(x), norm, f"{x}.norm")
        shape = self._graph.node("Shape", [x], f"{x}.shape")
        return self._graph.node("Reshape", [normed, shape], f"{x}.normed")


def rotation_tables(graph: Graph, index: int, rope: Rope, num_positions: int, dtype: type[np.generic]) -> list[str]:
    """Adds the cosines and sines of all positions (RoPE) as constants, each of shape `(positions, dim / 2)`."""
    tables = rope.tables(num_positions).astype(dtype)
    return [
        graph.constant(np.ascontiguousarray(tables[:, part]), f"rope.{index}.{name}")
        for part, name in enumerate(("cos", "sin"))
    ]


def _inputs(layer: Layer) -> tuple[Linear, Linear, Linear]:
    """The matrices of queries, keys and values. None is missing: models whose layers share keys are not exported."""
    assert layer.query is not None
    assert layer.key is not None
    assert layer.value is not None
    return layer.query, layer.key, layer.value
