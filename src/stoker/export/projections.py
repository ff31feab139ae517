"""Products with the model's matrices, and lookups in its embedding table, for every form that a matrix can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.backends.native.file import ModelParts
from stoker.backends.native.layer_parts import Linear
from stoker.export.graph import Graph
from stoker.export.initializers import Initializer
from stoker.export.matrices import BlockMatrix, FloatMatrix, Matrices
from stoker.export.options import ActivationKind
from stoker.export.rows import same_type, vector

_ACCURACY_LEVELS: Mapping[ActivationKind, int] = {"f32": 1, "int8": 4}
"""Precision of the inputs -> attribute `accuracy_level` of `MatMulNBits`."""


class Projections:
    """Appends products and lookups to a graph.

    Args:
        graph: the graph that nodes are appended to.
        parts: the model's files, with the biases.
        matrices: chooses the form of each matrix.
        activations: what the inputs of `MatMulNBits` are rounded to; libllama and the native executor use int8, too.
        is_plain: whether to use only ONNX's own operators, except for quantized matrices.
    """

    def __init__(
        self, graph: Graph, parts: ModelParts, matrices: Matrices, *, activations: ActivationKind, is_plain: bool
    ) -> None:
        self._graph = graph
        self._parts = parts
        self._matrices = matrices
        self._accuracy_level = _ACCURACY_LEVELS[activations]
        self._is_plain = is_plain
        self._sums: dict[tuple[str, int], str] = {}
        self._float_tables: dict[str, str] = {}

    def packed(self, x: str, linears: Sequence[Linear], name: str) -> str:
        """`weight @ x + bias` of some matrices, concatenated in the last dimension."""
        if same_type(self._parts, linears):
            return self._product(x, tuple(linears), name)
        single = [self._product(x, (linear,), f"{name}.{index}") for index, linear in enumerate(linears)]
        return self._graph.node("Concat", single, name, axis=-1)

    def each(self, x: str, linears: Sequence[Linear], names: Sequence[str]) -> list[str]:
        """The products of several matrices with one input; one product if they can be merged."""
        if not same_type(self._parts, linears):
            return [self._product(x, (linear,), name) for linear, name in zip(linears, names, strict=True)]
        fused = self._product(x, tuple(linears), ".".join(names))
        sizes = self._graph.ints(*(linear.num_rows for linear in linears))
        self._graph.node("Split", [fused, sizes], names, axis=-1)
        return list(names)

    def head(self, x: str, linear: Linear, name: str, *, is_tied: bool) -> str:
        """The logits. `is_tied` says that the embedding table is the output matrix, too."""
        return self._product(x, (linear,), name, is_table=is_tied)

    def embedding(self, ids: str, linear: Linear, name: str) -> str:
        """The rows of the embedding table for token ids, in float32."""
        table = self._matrices.of(name, (linear,), is_table=True)
        self._graph.add(table)
        if isinstance(table, FloatMatrix):
            return self._graph.node("Gather", [self._as_float(table), ids], f"{name}.rows", axis=0)
        return self._block_rows(table, ids, name)

    def _block_rows(self, table: BlockMatrix, ids: str, name: str) -> str:
        graph, shape, columns = self._graph, table.shape, table.rows.num_columns
        flat = (table.rows.num_rows, columns * shape.bits // 8)
        codes = graph.alias(Initializer(f"{table.name}.codes_of_rows", flat, table.codes.dtype, table.codes))
        inputs = [codes, ids, table.scales.name]
        if table.zero_points is not None:
            inputs.append(table.zero_points.name)
        rows = graph.contrib(
            "GatherBlockQuantized",
            inputs,
            f"{name}.rows" if table.offsets is None else f"{name}.centered",
            bits=shape.bits,
            block_size=shape.size,
            gather_axis=0,
            quantize_axis=1,
        )
        if table.offsets is None:
            return rows
        blocks = graph.node("Reshape", [rows, graph.ints(0, 0, table.blocks, shape.size)], f"{name}.blocks")
        offsets = graph.node("Gather", [table.offsets.name, ids], f"{name}.block_offsets", axis=1)
        offsets = graph.node("Transpose", [offsets], f"{name}.row_offsets", perm=[1, 2, 0])
        offsets = graph.node("Unsqueeze", [offsets, graph.ints(-1)], f"{name}.offsets_of_blocks")
        blocks = graph.node("Add", [blocks, offsets], f"{name}.moved")
        return graph.node("Reshape", [blocks, graph.ints(0, 0, columns)], f"{name}.rows")

    def _product(self, x: str, linears: tuple[Linear, ...], name: str, *, is_table: bool = False) -> str:
        matrix = self._matrices.of(name, linears, is_table=is_table)
        self._graph.add(matrix)
        biases = [linear for linear in linears if linear.bias]
        raw = f"{name}.product" if biases else name
        if isinstance(matrix, BlockMatrix):
            product = self._block_product(x, matrix, raw)
        else:
            product = self._float_product(x, matrix, raw)
        if not biases:
            return product
        return self._graph.node("Add", [product, self._bias(linears, name)], name)

    def _bias(self, linears: tuple[Linear, ...], name: str) -> str:
        values = [
            vector(self._parts, linear.bias, linear.first_row, linear.num_rows)
            if linear.bias
            else np.zeros(linear.num_rows, dtype=np.float32)
            for linear in linears
        ]
        return self._graph.constant(np.concatenate(values), f"{name}.bias")

    def _block_product(self, x: str, matrix: BlockMatrix, name: str) -> str:
        graph, offsets = self._graph, matrix.offsets
        inputs = [x, matrix.codes.name, matrix.scales.name]
        if matrix.zero_points is not None:
            inputs.append(matrix.zero_points.name)
        product = graph.contrib(
            "MatMulNBits",
            inputs,
            name if offsets is None else f"{name}.centered",
            K=matrix.rows.num_columns,
            N=matrix.rows.num_rows,
            bits=matrix.shape.bits,
            block_size=matrix.shape.size,
            accuracy_level=self._accuracy_level,
        )
        if offsets is None:
            return product
        rest = graph.node("MatMul", [self._block_sums(x, matrix), offsets.name], f"{name}.rest")
        return graph.node("Add", [product, rest], name)

    def _block_sums(self, x: str, matrix: BlockMatrix) -> str:
        """The sum of each block of the input, by which the offset of the weights' block is multiplied."""
        graph, key = self._graph, (x, matrix.shape.size)
        if key not in self._sums:
            shape = graph.ints(0, 0, matrix.blocks, matrix.shape.size)
            blocks = graph.node("Reshape", [x, shape], f"{x}.blocks_of_{matrix.shape.size}")
            sums = f"{x}.sums_of_{matrix.shape.size}"
            self._sums[key] = graph.node("ReduceSum", [blocks, graph.ints(-1)], sums, keepdims=0)
        return self._sums[key]

    def _float_product(self, x: str, matrix: FloatMatrix, name: str) -> str:
        weight = self._as_float(matrix)
        if not matrix.is_table:
            return self._graph.node("MatMul", [x, weight], name)
        if not self._is_plain:
            return self._graph.contrib("FusedMatMul", [x, weight], name, transB=1)
        turned = self._graph.node("Transpose", [weight], f"{weight}.turned", perm=[1, 0])
        return self._graph.node("MatMul", [x, turned], name)

    def _as_float(self, matrix: FloatMatrix) -> str:
        """The weights in float32. ONNX Runtime converts them once, when it loads the model."""
        name = matrix.weight.name
        if matrix.dtype == np.float32:
            return name
        if name not in self._float_tables:
            self._float_tables[name] = self._graph.cast(name, np.float32, f"{name}.float32")
        return self._float_tables[name]
