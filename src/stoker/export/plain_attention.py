"""Attention in ONNX's own operators, step by step: every runtime can compute it, but none computes it fast."""

from __future__ import annotations

import numpy as np

from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.spec import DecoderSpec, Layer
from stoker.export.attention import Heads, rotation_tables
from stoker.export.graph import Graph
from stoker.export.operators import Operators

_HIDDEN = float(np.finfo(np.float32).min)
"""Bias of a masked score. It is finite, so that a padded row, all of whose scores are masked, does not become NaN."""


class PlainAttention:
    """Satisfies `Attention`. Padding may be anywhere, because positions are an input of the graph.

    Args:
        graph: the graph that nodes are appended to.
        spec: the model.
        heads: its queries, keys and values.
        operators: for the soft cap.
        ids: name of the token ids, `(batch, new)`.
        mask: name of the attention mask, `(batch, total)`.
        positions: name of the positions, `(batch, new)`.
        context_size: number of positions in the rotation tables.
    """

    def __init__(
        self,
        graph: Graph,
        spec: DecoderSpec,
        heads: Heads,
        operators: Operators,
        *,
        ids: str,
        mask: str,
        positions: str,
        context_size: int,
    ) -> None:
        self._graph = graph
        self._spec = spec
        self._heads = heads
        self._operators = operators
        self._rotations = [
            [
                graph.node("Unsqueeze", [graph.node("Gather", [table, positions], f"{table}.new"), graph.ints(2)], name)
                for table in rotation_tables(graph, index, rope, context_size, np.float32)
                for name in [f"{table}.of_heads"]
            ]
            for index, rope in enumerate(spec.ropes)
        ]
        self._keys, self._queries = self._indices(ids, mask)
        self._is_token = self._tokens(mask)
        self._biases: dict[int | None, str] = {}

    def layer(self, index: int, layer: Layer, x: str) -> str:
        """See `Attention`.

        ```
        query   (batch, kv heads, group, new, head size)     group: the query heads that share one KV head
        key     (batch, kv heads, 1, head size, total)
        scores  (batch, kv heads, group, new, total)
        ```
        """
        name, graph, spec = f"layers.{index}.attention", self._graph, self._spec
        query, key, value = (self._heads.split(part) for part in self._heads.apart(index, layer, x))
        query, key = self._rotated(query, layer), self._rotated(key, layer)
        keys, values = self._extended(index, key, value)
        groups = graph.ints(0, 0, spec.heads.num_kv, spec.heads.num // spec.heads.num_kv, spec.heads.size)
        query = graph.node("Reshape", [query, groups], f"{name}.groups")
        query = graph.node("Transpose", [query], f"{name}.query", perm=[0, 2, 3, 1, 4])
        turned = graph.node("Transpose", [keys], f"{name}.keys", perm=[0, 1, 3, 2])
        scores = graph.node("MatMul", [query, self._shared(turned)], f"{name}.products")
        scores = self._operators.scaled(scores, spec.attention_scale, f"{name}.scaled")
        scores = self._operators.softcap(scores, spec.attention_softcap, f"{name}.capped")
        scores = graph.node("Add", [scores, self._bias(layer.window)], f"{name}.scores")
        weights = graph.node("Softmax", [scores], f"{name}.weights", axis=-1)
        seen = graph.node("MatMul", [weights, self._shared(values)], f"{name}.seen")
        seen = graph.node("Transpose", [seen], f"{name}.by_token", perm=[0, 3, 1, 2, 4])
        return self._heads.joined(seen, spec.heads.num, name)

    def _shared(self, x: str) -> str:
        return self._graph.node("Unsqueeze", [x, self._graph.ints(2)], f"{x}.shared")

    def _extended(self, index: int, key: str, value: str) -> list[str]:
        """Keys and values, past and new: declared as outputs of the graph, and returned in float32."""
        graph, dtype, found = self._graph, self._heads.dtype, list[str]()
        outputs = self._heads.present(index)
        for past, new, present in zip(self._heads.past(index), (key, value), outputs, strict=True):
            new = graph.node("Transpose", [new], f"{new}.by_head", perm=[0, 2, 1, 3])
            new = new if dtype == np.float32 else graph.cast(new, dtype, f"{new}.narrow")
            graph.node("Concat", [past, new], present, axis=2)
            found.append(present if dtype == np.float32 else graph.cast(present, np.float32, f"{present}.wide"))
        return found

    def _rotated(self, x: str, layer: Layer) -> str:
        """Rotates the pairs of each head (RoPE), of shape `(batch, new, heads, head size)`."""
        graph, rope = self._graph, self._spec.ropes[layer.rope]
        cos, sin = self._rotations[layer.rope]
        still = self._spec.heads.size - rope.dim
        turning, rest = x, list[str]()
        if still:
            turning, rest = f"{x}.turning", [f"{x}.still"]
            graph.node("Split", [x, graph.ints(rope.dim, still)], [turning, *rest], axis=-1)
        is_adjacent = rope.pairs is RopePairs.ADJACENT
        pairs = graph.ints(0, 0, 0, *((rope.dim // 2, 2) if is_adjacent else (2, rope.dim // 2)))
        axis = -1 if is_adjacent else -2
        turning = graph.node("Reshape", [turning, pairs], f"{x}.pairs")
        ends = [
            graph.node("Gather", [turning, graph.constant(np.array(end))], f"{x}.end_{end}", axis=axis)
            for end in (0, 1)
        ]
        products = [graph.node("Mul", [end, by], f"{end}.{i}") for end in ends for i, by in enumerate((cos, sin))]
        first = graph.node("Sub", [products[0], products[3]], f"{x}.first")
        second = graph.node("Add", [products[1], products[2]], f"{x}.second")
        wide = [graph.node("Unsqueeze", [end, graph.ints(axis)], f"{end}.end") for end in (first, second)]
        turned = graph.node("Concat", wide, f"{x}.turned_pairs", axis=axis)
        turned = graph.node("Reshape", [turned, graph.ints(0, 0, 0, rope.dim)], f"{x}.turned")
        return graph.node("Concat", [turned, *rest], f"{x}.rotated", axis=-1) if rest else turned

    def _indices(self, ids: str, mask: str) -> tuple[str, str]:
        """Indices of keys `(total)` and queries `(new, 1)` in the whole sequence, padding included."""
        graph, one = self._graph, self._graph.constant(np.array(1))
        zero = graph.constant(np.array(0))
        new = graph.node("Gather", [graph.node("Shape", [ids], "ids.shape"), one], "new", axis=0)
        total = graph.node("Gather", [graph.node("Shape", [mask], "mask.shape"), one], "total", axis=0)
        past = graph.node("Sub", [total, new], "past")
        queries = graph.node("Range", [past, total, one], "queries")
        keys = graph.node("Range", [zero, total, one], "keys")
        return keys, graph.node("Unsqueeze", [queries, graph.ints(1)], "queries.rows")

    def _tokens(self, mask: str) -> str:
        """Whether each key is a token and not padding, of shape `(batch, 1, 1, 1, total)`."""
        wide = self._graph.node("Unsqueeze", [mask, self._graph.ints(1, 2, 3)], "mask.of_scores")
        return self._graph.cast(wide, np.bool_, "mask.is_token")

    def _bias(self, window: int | None) -> str:
        """The mask of a window size, to be added to scores: 0 where a query sees a key, else `_HIDDEN`."""
        if window not in self._biases:
            graph, name = self._graph, "bias" if window is None else f"bias.{window}"
            seen = graph.node("LessOrEqual", [self._keys, self._queries], f"{name}.is_before")
            if window is not None:
                end = graph.node("Sub", [self._queries, graph.constant(np.array(window))], f"{name}.end")
                near = graph.node("Greater", [self._keys, end], f"{name}.is_near")
                seen = graph.node("And", [seen, near], f"{name}.is_in_window")
            seen = graph.node("And", [seen, self._is_token], f"{name}.is_seen")
            self._biases[window] = graph.node("Where", [seen, graph.scalar(0), graph.scalar(_HIDDEN)], name)
        return self._biases[window]
