"""An ONNX graph under construction: nodes, constants, inputs and outputs. It knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from stoker.export.initializers import ArraySource, Initializer, Source

CONTRIB = "com.microsoft"
_OPSETS = {"": 21, CONTRIB: 1}
_IR_VERSION = 10
_INLINE_BYTES = 1024
"""Constants of fewer bytes are stored in the graph itself: shapes must be, others need no place in the data file."""


class Graph:
    """Collects nodes in order. A tensor is represented by its name, and a node is named after its first output."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._inline: list[onnx.TensorProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.initializers: dict[str, Initializer] = {}
        """Name -> tensor that is stored outside of the graph, in the data file."""
        self.used = set[str]()
        """Names of tensors that are the input of some node."""
        self.sources: list[Source] = []
        """The sources of the bytes of `initializers`."""

    def node(
        self, op: str, inputs: Sequence[str], output: str | Sequence[str], *, domain: str = "", **attributes: Any
    ) -> str:
        """Appends a node and returns its first output. Empty names stand for optional inputs and outputs."""
        outputs = [output] if isinstance(output, str) else list(output)
        self.used.update(inputs)
        self._nodes.append(
            helper.make_node(op, list(inputs), outputs, name=f"{outputs[0]}.{op}", domain=domain, **attributes)
        )
        return outputs[0]

    def contrib(self, op: str, inputs: Sequence[str], output: str | Sequence[str], **attributes: Any) -> str:
        """As `node`, with one of ONNX Runtime's own operators."""
        return self.node(op, inputs, output, domain=CONTRIB, **attributes)

    def cast(self, x: str, dtype: type[np.generic], output: str) -> str:
        """Converts a tensor to another data type."""
        return self.node("Cast", [x], output, to=_element(np.dtype(dtype)))

    def constant(self, value: NDArray[Any], name: str | None = None) -> str:
        """Adds an array as a constant. Without a name, it must be small, and equal arrays are added once."""
        key = (str(value.dtype), value.shape, value.tobytes() if value.nbytes < _INLINE_BYTES else b"")
        if name is None:
            assert value.nbytes < _INLINE_BYTES
            if key in self._constants:
                return self._constants[key]
        chosen = self._constants[key] = name or f"constant.{len(self._constants)}"
        if value.nbytes < _INLINE_BYTES:
            self._inline.append(onnx.numpy_helper.from_array(value, chosen))
        else:
            self.add(ArraySource(chosen, value))
        return chosen

    def ints(self, *values: int) -> str:
        """Adds a constant vector of int64, for shapes and axes."""
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float) -> str:
        """Adds a constant float32 scalar."""
        return self.constant(np.array(value, dtype=np.float32))

    def add(self, source: Source) -> None:
        """Adds the tensors of a source. A source that was added before is ignored."""
        if any(known is source for known in self.sources):
            return
        self.sources.append(source)
        for tensor in source.initializers:
            assert tensor.name not in self.initializers, tensor.name
            self.initializers[tensor.name] = tensor

    def alias(self, tensor: Initializer) -> str:
        """Adds a tensor that has the bytes of another one, and returns its name."""
        assert tensor.same_bytes_as is not None
        self.initializers[tensor.name] = tensor
        return tensor.name

    def input(self, name: str, dtype: type[np.generic], dims: Sequence[str | int]) -> str:
        """Declares an input. A dimension with a name can have any size."""
        self._inputs.append(helper.make_tensor_value_info(name, _element(np.dtype(dtype)), list(dims)))
        return name

    def output(self, name: str, dtype: type[np.generic], dims: Sequence[str | int]) -> str:
        """Declares an output, which must be an output of some node."""
        self._outputs.append(helper.make_tensor_value_info(name, _element(np.dtype(dtype)), list(dims)))
        return name

    def proto(self, name: str, producer: tuple[str, str], external: Sequence[onnx.TensorProto]) -> onnx.ModelProto:
        """The finished model.

        Args:
            name: of the graph.
            producer: name and version of the program.
            external: `initializers` with their places in the data file, see `external_tensor`.
        """
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, [*self._inline, *external])
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        model.producer_name, model.producer_version = producer
        return model


def external_tensor(tensor: Initializer, location: str, offset: int) -> onnx.TensorProto:
    """A reference to a tensor in the file `location`, at `offset` bytes."""
    proto = onnx.TensorProto(name=tensor.name, dims=tensor.dims, data_type=_element(tensor.dtype))
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(tensor.num_bytes))):
        proto.external_data.add(key=key, value=value)
    return proto


def _element(dtype: np.dtype[Any]) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)
