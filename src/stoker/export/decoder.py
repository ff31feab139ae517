"""Builds a whole decoder as a graph: token ids, attention mask and KV cache in, logits and extended KV cache out."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from stoker.backends.native.spec import DecoderSpec, Layer
from stoker.export.attention import BATCH, NEW, TOTAL, Attention, Heads
from stoker.export.fused_attention import FusedAttention
from stoker.export.graph import Graph
from stoker.export.matrices import Matrices
from stoker.export.operators import Operators
from stoker.export.options import ExportOptions
from stoker.export.plain_attention import PlainAttention
from stoker.export.projections import Projections

_Part = TypeVar("_Part")

IDS, MASK, POSITIONS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"


def build_decoder(spec: DecoderSpec, matrices: Matrices, options: ExportOptions, context_size: int) -> Graph:
    """The graph of a model. It contains norms and biases, but no matrix is read yet.

    Args:
        spec: the model.
        matrices: chooses the form of each matrix.
        options: what the user chose.
        context_size: maximum length of a sequence, in tokens.
    """
    return _Decoder(spec, matrices, options, context_size).build()


class _Decoder:
    def __init__(self, spec: DecoderSpec, matrices: Matrices, options: ExportOptions, context_size: int) -> None:
        is_plain = options.attention == "plain"
        graph, parts = Graph(), matrices.parts
        self._spec = spec
        self._graph = graph
        self._operators = Operators(graph, parts, eps=spec.norm_eps, is_plain=is_plain)
        self._projections = Projections(graph, parts, matrices, activations=options.activations, is_plain=is_plain)
        self._is_plain = is_plain
        self._attention = self._declare(options, context_size)

    def _declare(self, options: ExportOptions, context_size: int) -> Attention:
        graph, spec = self._graph, self._spec
        heads = Heads(graph, spec, self._projections, self._operators, options.kv_type)
        ids = graph.input(IDS, np.int64, (BATCH, NEW))
        mask = graph.input(MASK, np.int64, (BATCH, TOTAL))
        graph.output(LOGITS, np.float32, (BATCH, NEW, spec.vocab_size))
        if not self._is_plain:
            return FusedAttention(graph, spec, heads, mask=mask, context_size=context_size)
        positions = graph.input(POSITIONS, np.int64, (BATCH, NEW))
        where = {"ids": ids, "mask": mask, "positions": positions}
        return PlainAttention(graph, spec, heads, self._operators, context_size=context_size, **where)

    def build(self) -> Graph:
        """Appends all nodes, and returns the graph.

        ```
        x -> norm -> attention -> + -> norm -> feed-forward -> + -> norm of the next layer, or of the head -> …
        ```
        """
        spec, operators = self._spec, self._operators
        x = self._projections.embedding(IDS, spec.embedding, "embedding")
        x = operators.scaled(x, spec.embedding_scale, "embedding.scaled")
        normed = operators.norm(x, _there(spec.layers[0].attention_norm), "layers.0.attention_norm")
        following = [layer.attention_norm for layer in spec.layers[1:]]
        for index, (layer, next_norm) in enumerate(zip(spec.layers, [*following, spec.output_norm], strict=True)):
            name = f"layers.{index}"
            y = self._attended(index, layer, normed)
            x, normed = operators.add_and_norm(x, y, _there(layer.feed_forward_norm), f"{name}.feed_forward_norm")
            y = self._fed_forward(index, layer, normed)
            next_name = f"layers.{index + 1}.attention_norm" if index + 1 < len(spec.layers) else "output_norm"
            x, normed = operators.add_and_norm(x, y, _there(next_norm), next_name)
        name = f"{LOGITS}.uncapped" if spec.logit_softcap else LOGITS
        logits = self._projections.head(normed, spec.head, name, is_tied=spec.is_tied)
        operators.softcap(logits, spec.logit_softcap, LOGITS)
        return self._graph

    def _attended(self, index: int, layer: Layer, x: str) -> str:
        name = f"layers.{index}.attention_output"
        assert layer.output is not None
        seen = self._attention.layer(index, layer, x)
        y = self._projections.packed(seen, (layer.output,), name)
        norm = layer.post_attention_norm
        return y if norm is None else self._operators.norm(y, norm, f"{name}_norm")

    def _fed_forward(self, index: int, layer: Layer, x: str) -> str:
        name = f"layers.{index}"
        gate, up = self._projections.each(x, (_there(layer.gate), _there(layer.up)), [f"{name}.gate", f"{name}.up"])
        inner = self._operators.gated(gate, up, self._spec.activation, f"{name}.feed_forward")
        y = self._projections.packed(inner, (_there(layer.down),), f"{name}.down")
        norm = layer.post_feed_forward_norm
        return y if norm is None else self._operators.norm(y, norm, f"{name}.down_norm")


def _there(part: _Part | None) -> _Part:
    """The part, which is never None in the architectures that can be exported."""
    assert part is not None
    return part
