"""The interface to an open GGUF file that this backend needs. The GGUF parser satisfies it without importing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ModelFileInvalid

FLOAT_TYPES: Mapping[str, str] = MappingProxyType({"F32": "<f4", "F16": "<f2", "BF16": "<u2"})
"""Tensor types of floats, with the numpy type as which their bytes are read."""


class TensorKind(Protocol):
    """The type of a tensor's elements, with GGML's number and name."""

    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...


class TensorEntry(Protocol):
    """One tensor of a file. `shape` is in the file's order: the first dimension is the contiguous one."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> TensorKind: ...
    @property
    def offset(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...


class ModelFile(Protocol):
    """An open GGUF file with a valid header. All getters raise ModelFileInvalid for a value of another type."""

    @property
    def path(self) -> Path: ...
    @property
    def architecture(self) -> str: ...
    @property
    def tensors(self) -> Mapping[str, TensorEntry]: ...

    def own_key(self, suffix: str) -> str:
        """The key with the architecture in front: `context_length` -> `llama.context_length`."""
        ...

    def get_str(self, key: str) -> str | None: ...
    def get_bool(self, key: str) -> bool | None: ...
    def get_int(self, key: str) -> int | None: ...
    def get_ints(self, key: str) -> list[int] | None: ...
    def get_floats(self, key: str) -> list[float] | None: ...
    def get_float(self, key: str) -> float | None: ...
    def get_array(self, key: str) -> Sized | None: ...
    def is_array(self, key: str) -> bool: ...
    def require_int(self, key: str) -> int: ...
    def tensor_data(self, name: str) -> memoryview:
        """The bytes of a tensor as in the file, without a copy."""
        ...

    def header_data(self) -> memoryview:
        """All bytes of the file before the data of its tensors, without a copy."""
        ...


class Sized(Protocol):
    def __len__(self) -> int: ...


class ModelParts:
    """All files of one model as one: the metadata of the first file, the tensors of all files.

    Args:
        files: in order; at least one. They stay open as long as this object is used.

    Raises:
        ModelFileInvalid: two files have a tensor of the same name.
    """

    def __init__(self, files: Sequence[ModelFile]) -> None:
        self.files = tuple(files)
        self.first = files[0]
        self._owners = {name: file for file in files for name in file.tensors}
        if len(self._owners) < sum(len(file.tensors) for file in files):
            raise ModelFileInvalid(f"two parts of {self.first.path} have the same tensor", path=str(self.first.path))
        self.tensors: Mapping[str, TensorEntry] = MappingProxyType(
            {name: file.tensors[name] for name, file in self._owners.items()}
        )

    def tensor_data(self, name: str) -> memoryview:
        """The bytes of a tensor that exists, as in the file, without a copy."""
        return self._owners[name].tensor_data(name)

    def floats(self, name: str) -> NDArray[np.float32]:
        """A copy of all elements of a tensor that exists, whose type is one of `FLOAT_TYPES`."""
        return plain_floats(self.tensors[name].type.name, self.tensor_data(name)).astype(np.float32)


def plain_floats(kind: str, data: bytes | memoryview) -> NDArray[np.floating[Any]]:
    """The elements of a tensor whose type is one of `FLOAT_TYPES`: F16 as float16, the others as float32."""
    if kind == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype=FLOAT_TYPES[kind])
