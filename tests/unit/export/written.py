"""Reads back what an export wrote, with the `onnx` package alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray


class Written:
    """A model with all of its tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = onnx.load(folder / "model.onnx")
        self.nodes = {node.output[0]: node for node in self.model.graph.node}
        self.tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self.model.graph.initializer}
        self.inputs = {value.name: value for value in self.model.graph.input}
        self.ops = {node.op_type for node in self.model.graph.node}
        self.domains = {node.domain for node in self.model.graph.node}

    def external(self) -> list[tuple[str, int, int]]:
        """Name, first byte and length of every tensor that lies in the other file."""
        raw = onnx.load(self.folder / "model.onnx", load_external_data=False)
        return [_place(tensor) for tensor in raw.graph.initializer if tensor.external_data]

    def matrix(self, name: str) -> NDArray[np.float32]:
        """The weights that the product `name` multiplies with, shape `(rows, columns)`."""
        node = next(node for node in self.model.graph.node if node.output[0] in (name, f"{name}.centered"))
        if node.op_type == "MatMul":
            return self._float(node.input[1]).T
        if node.op_type == "FusedMatMul":
            return self._float(node.input[1])
        assert node.op_type == "MatMulNBits"
        has = {attribute.name: attribute.i for attribute in node.attribute}
        codes = self.unpacked(self.tensors[node.input[1]], has["bits"]).astype(np.float32)
        assert codes.shape == (has["N"], has["K"] // has["block_size"], has["block_size"])
        zeros: Any = 1 << (has["bits"] - 1)
        if len(node.input) > 3:
            zeros = self.unpacked(self.tensors[node.input[3]], has["bits"])[:, : codes.shape[1], None]
        weights = (codes - zeros) * self.tensors[node.input[2]][..., None]
        if node.output[0] != name:
            weights += self.tensors[f"{node.input[1].removesuffix('.codes')}.offsets"].T[..., None]
        return weights.reshape(has["N"], has["K"])

    @staticmethod
    def unpacked(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
        if bits == 8:
            return codes
        return np.stack((codes & np.uint8(15), codes >> np.uint8(4)), axis=-1).reshape(*codes.shape[:-1], -1)

    def _float(self, name: str) -> NDArray[np.float32]:
        found = self.nodes.get(name)
        return self.tensors[name if found is None else found.input[0]].astype(np.float32)

    def bits(self, name: str) -> int | None:
        """Of the codes of the product `name`; None if it has none."""
        node = self.nodes.get(name) or self.nodes[f"{name}.centered"]
        return next((attribute.i for attribute in node.attribute if attribute.name == "bits"), None)


def _place(tensor: onnx.TensorProto) -> tuple[str, int, int]:
    facts = {entry.key: entry.value for entry in tensor.external_data}
    assert facts["location"] == "model.onnx.data"
    return tensor.name, int(facts["offset"]), int(facts["length"])
