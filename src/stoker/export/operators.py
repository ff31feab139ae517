"""The steps between matrix products: norms, activations, soft caps, with ONNX's operators or ONNX Runtime's own."""

from __future__ import annotations

import numpy as np

from stoker.backends.native.file import ModelParts
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.spec import Activation
from stoker.export.graph import Graph
from stoker.export.rows import vector


class Operators:
    """Appends norms, activations and other small steps to a graph.

    Args:
        graph: the graph that nodes are appended to.
        parts: the model's files, with the weights of norms.
        eps: epsilon of all norms.
        is_plain: whether to use only ONNX's own operators.
    """

    def __init__(self, graph: Graph, parts: ModelParts, *, eps: float, is_plain: bool) -> None:
        self._graph = graph
        self._parts = parts
        self._eps = eps
        self._is_plain = is_plain

    def norm(self, x: str, norm: Norm, name: str) -> str:
        """RMS norm over the last dimension."""
        graph, weight = self._graph, self._weight(norm, name)
        if not self._is_plain:
            return graph.node("SimplifiedLayerNormalization", [x, weight], name, epsilon=self._eps, axis=-1)
        squares = graph.node("Pow", [x, graph.scalar(2)], f"{name}.squares")
        mean = graph.node("ReduceMean", [squares, graph.ints(-1)], f"{name}.mean", keepdims=1)
        root = graph.node("Sqrt", [graph.node("Add", [mean, graph.scalar(self._eps)], f"{name}.safe")], f"{name}.root")
        return graph.node("Mul", [graph.node("Div", [x, root], f"{name}.unit"), weight], name)

    def add_and_norm(self, x: str, y: str, norm: Norm, name: str) -> tuple[str, str]:
        """`x + y`, and the norm of the sum."""
        total = f"{name}.sum"
        if self._is_plain:
            self._graph.node("Add", [x, y], total)
            return total, self.norm(total, norm, name)
        inputs = [x, y, self._weight(norm, name)]
        self._graph.contrib("SkipSimplifiedLayerNormalization", inputs, [name, "", "", total], epsilon=self._eps)
        return total, name

    def gated(self, gate: str, up: str, activation: Activation, name: str) -> str:
        """`activation(gate) * up`."""
        graph = self._graph
        if activation is Activation.GELU_TANH:
            active = graph.node("Gelu", [gate], f"{name}.gelu", approximate="tanh")
        else:
            sigmoid = graph.node("Sigmoid", [gate], f"{name}.sigmoid")
            active = graph.node("Mul", [gate, sigmoid], f"{name}.silu")
        return graph.node("Mul", [active, up], f"{name}.gated")

    def softcap(self, x: str, cap: float, name: str) -> str:
        """`cap * tanh(x / cap)`; `x` itself if `cap` is 0."""
        if not cap:
            return x
        graph = self._graph
        small = graph.node("Div", [x, graph.scalar(cap)], f"{name}.divided")
        return graph.node("Mul", [graph.node("Tanh", [small], f"{name}.tanh"), graph.scalar(cap)], name)

    def scaled(self, x: str, factor: float, name: str) -> str:
        """`factor * x`; `x` itself if `factor` is 1."""
        return x if factor == 1 else self._graph.node("Mul", [x, self._graph.scalar(factor)], name)

    def _weight(self, norm: Norm, name: str) -> str:
        ones = np.ones(norm.size, dtype=np.float32)
        weight = ones if norm.weight is None else vector(self._parts, norm.weight, 0, norm.size)
        return self._graph.constant(weight * np.float32(norm.scale), f"{name}.weight")
