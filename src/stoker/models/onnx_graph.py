"""What an ONNX file says about its graph: inputs, outputs, operators, where its weights lie. It computes nothing.

The format is protobuf, of which only what is asked for is read; weights are skipped over:
<https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeAlias

from stoker.errors import ModelFileInvalid, ModelFileNotFound, reason_of
from stoker.models.protobuf import Message, ProtobufError

_GRAPH, _NODE, _INITIALIZER, _INPUT, _OUTPUT = 7, 1, 5, 11, 12
_LOCAL_FUNCTION = 25
_EXTERNAL = 1
_PACKED_PRODUCT = "MatMulNBits"
_MAX_DEPTH = 16
_SIZE = re.compile(r"[0-9]{1,18}")
_POINTER = b"version https://git-lfs"

_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    21: "uint4",
    22: "int4",
}
"""`TensorProto.DataType`; the others do not occur in language models."""
_BITS = {
    **dict.fromkeys(("float64", "int64", "uint64"), 64),
    **dict.fromkeys(("float32", "int32", "uint32"), 32),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("bool", "int8", "uint8"), 8),
    **dict.fromkeys(("int4", "uint4"), 4),
}

Operator: TypeAlias = tuple[str, str]
"""Domain (empty for ONNX's own) and name."""


@dataclass(frozen=True, slots=True)
class GraphValue:
    """One input or output of a graph."""

    name: str
    type: str
    """Such as `float32`, as numpy calls it; `other` if this is no tensor of numbers."""
    shape: tuple[int | str, ...]
    """A number, or the name of what varies, for each dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxGraph:
    """One ONNX file. Nothing of it stays open."""

    path: Path
    inputs: tuple[GraphValue, ...]
    """Inputs that the caller has to give."""
    outputs: tuple[GraphValue, ...]
    operators: Mapping[Operator, int]
    """How often each occurs, in nested graphs too."""
    weight_files: tuple[Path, ...]
    """The file itself, then the others that its weights lie in."""
    num_parameters: int
    """Of all matrices, packed ones too."""
    weights_bytes: int
    weights_folder: Path
    """Where the places of weights in other files begin."""
    content: bytes | None = field(default=None, repr=False)
    """Is to be run instead of what the file holds; its weights are where they are."""
    own_content: bytes | None = field(default=None, repr=False)
    """The same with operators of Stoker's own, for who has their library."""

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.weight_files)


def read_onnx_graph(path: Path) -> OnnxGraph:
    """Reads and checks one file.

    Raises:
        ModelFileNotFound: it, or a file with some of its weights, is missing; the message names it.
        ModelFileInvalid: it is truncated, is no ONNX file, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                _fail(path, "it is empty")
            if file.read(len(_POINTER)) == _POINTER:
                _fail(path, "it is a Git LFS pointer; fetch the real file with `git lfs pull`")
            # Unmapped when its last view is gone; an error's traceback keeps some.
            return _Reader(path).read(memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)))
    except FileNotFoundError as error:
        raise ModelFileNotFound(f"there is no file {path}", path=str(path)) from error
    except OSError as error:
        raise ModelFileInvalid(f"{path} cannot be read: {reason_of(error)}", path=str(path)) from error
    except ProtobufError as error:
        _fail(path, f"{error}; it is truncated, or no ONNX file")


class _Reader:
    """Gathers what one file says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._operators: Counter[Operator] = Counter()
        self._constants: set[str] = set()
        self._packed: set[str] = set()
        self._places: set[tuple[str, int]] = set()
        self._extents: dict[str, int] = {}
        """How long each file with weights must at least be."""
        self._num_parameters = 0
        self._weights_bytes = 0

    def read(self, data: memoryview) -> OnnxGraph:
        model = Message(data)
        graphs = list(model.messages(_GRAPH))
        if len(graphs) != 1:
            _fail(self._path, "it has no graph: it is truncated, or no ONNX file")
        for function in model.messages(_LOCAL_FUNCTION):
            self._count_operators(function, node_field=7)
        self._count_operators(graphs[0], node_field=_NODE)
        for tensor in graphs[0].messages(_INITIALIZER):
            self._add_constant(tensor)
        inputs = [self._value(value) for value in graphs[0].messages(_INPUT)]
        return OnnxGraph(
            path=self._path,
            inputs=tuple(value for value in inputs if value.name not in self._constants),
            outputs=tuple(self._value(value) for value in graphs[0].messages(_OUTPUT)),
            operators=MappingProxyType(dict(self._operators)),
            weight_files=(self._path, *self._external_files()),
            num_parameters=self._num_parameters,
            weights_bytes=self._weights_bytes,
            weights_folder=self._path.parent,
        )

    def _count_operators(self, graph: Message, *, node_field: int, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            _fail(self._path, "its graphs are nested too deeply")
        for node in graph.messages(node_field):
            domain = node.text(7)
            if node.text(4) == _PACKED_PRODUCT:
                self._add_packed(node)
            self._operators["" if domain == "ai.onnx" else domain, node.text(4)] += 1
            for attribute in node.messages(5):
                for nested in (*attribute.messages(6), *attribute.messages(11)):
                    self._count_operators(nested, node_field=_NODE, depth=depth + 1)

    def _add_packed(self, node: Message) -> None:
        """A matrix of few bits: its sizes are the node's, its constants are no numbers."""
        inputs = node.texts(1)
        if len(inputs) < 2 or inputs[1] in self._packed:
            return
        self._packed |= set(inputs[1:])
        sizes = {attribute.text(1): attribute.integer(3) for attribute in node.messages(5)}
        self._num_parameters += sizes.get("K", 0) * sizes.get("N", 0)

    def _add_constant(self, tensor: Message) -> None:
        name, dims, kind = tensor.text(8), tensor.integers(1), _TYPES.get(tensor.integer(2))
        self._constants.add(name)
        num_bytes = -(-prod(dims) * _BITS.get(kind or "", 8) // 8)
        if tensor.integer(14) == _EXTERNAL:
            entries = {entry.text(1): entry.text(2) for entry in tensor.messages(13)}
            place = self._add_external(name, entries, num_bytes)
            if place in self._places:
                return  # one matrix under two names, as of a head that is tied to the embeddings
            self._places.add(place)
        self._weights_bytes += num_bytes
        self._num_parameters += prod(dims) if len(dims) > 1 and name not in self._packed else 0

    def _add_external(self, name: str, entries: Mapping[str, str], num_bytes: int) -> tuple[str, int]:
        location = entries.get("location", "")
        offset, length = entries.get("offset") or "0", entries.get("length") or str(num_bytes)
        if not (_SIZE.fullmatch(offset) and _SIZE.fullmatch(length)) or int(length) != num_bytes:
            _fail(self._path, f"what it says about the place of `{name}` cannot be")
        if not location or os.path.isabs(location) or ".." in Path(location).parts:
            _fail(self._path, f"the data of `{name}` lie in {location!r}, which is not beside it")
        self._extents[location] = max(self._extents.get(location, 0), int(offset) + num_bytes)
        return location, int(offset)

    def _external_files(self) -> Iterator[Path]:
        for location, extent in self._extents.items():
            file = self._path.parent / location
            if not file.is_file():
                raise ModelFileNotFound(
                    f"{self._path} keeps its weights in {location}, and there is no such file beside it",
                    path=str(file),
                )
            size = file.stat().st_size
            if size < extent:
                _fail(file, f"it is truncated: it has {size} bytes, and {self._path.name} needs {extent}")
            yield file

    def _value(self, value: Message) -> GraphValue:
        for tensor in (tensor for kind in value.messages(2) for tensor in kind.messages(1)):
            shape = tuple(_dimension(d) for whole in tensor.messages(2) for d in whole.messages(1))
            return GraphValue(value.text(1), _TYPES.get(tensor.integer(1), "other"), shape)
        return GraphValue(value.text(1), "other", ())


def _dimension(dimension: Message) -> int | str:
    return dimension.text(2) or dimension.integer(1) or "?"


def _fail(path: Path, what: str) -> NoReturn:
    raise ModelFileInvalid(f"{path} cannot be used: {what}", path=str(path))
