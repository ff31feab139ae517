"""Control vectors as GGUF files: one direction per layer, which steers what a model computes. It applies nothing.

The keys are those that llama.cpp's `cvector-generator` writes: tensors `direction.1`, `direction.2`, …, each added
behind the layer of its number, counted from 0. Behind layer 0 nothing can be added.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, ModelError
from stoker.models.gguf import GGUFFile, read_gguf

_TENSOR = re.compile(r"direction\.([1-9]\d{0,5})")
_WITH_SCALE = re.compile(r"(?s)(.+):(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """What is added behind each layer, all vectors together."""

    values: NDArray[np.float32]
    """`(layers - 1, hidden size)`: row i is for layer i + 1."""
    identity: str
    """Names the numbers."""


def read_control_vectors(given: Sequence[str], *, num_layers: int, hidden_size: int) -> Directions:
    """Reads files and adds them up.

    Args:
        given: `PATH` or `PATH:SCALE` each.
        num_layers: of the model.
        hidden_size: of the model.

    Raises:
        ConfigError: a file is missing, damaged, no control vector, or one of another model; says which.
    """
    total = np.zeros((num_layers - 1, hidden_size), dtype=np.float32)
    for text in given:
        found = _WITH_SCALE.fullmatch(text)
        path, scale = (found[1], float(found[2])) if found else (text, 1.0)
        try:
            with read_gguf(Path(path).expanduser()) as file:
                _add(total, file, scale)
        except ModelError as error:
            raise ConfigError(f"{error.message}. A control vector in GGUF is needed", key="control_vector") from error
    return Directions(total, hashlib.blake2b(total.tobytes(), digest_size=8).hexdigest())


def parse_layers(text: str, num_layers: int) -> tuple[int, int]:
    """The first and the last layer of `FROM-TO`; empty = all.

    Raises:
        ConfigError: it is no range of layers of the model.
    """
    if not text:
        return 1, num_layers - 1
    found = re.fullmatch(r"(\d{1,6})-(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) < num_layers:
        message = f"`control_vector_layers` must be FROM-TO within 1-{num_layers - 1}, not {text!r}"
        raise ConfigError(message, key="control_vector_layers")
    return int(found[1]), int(found[2])


def _add(total: NDArray[np.float32], file: GGUFFile, scale: float) -> None:
    if file.get_str("general.architecture") != "controlvector" or not file.tensors:
        _fail(file, "it is not a control vector")
    for name, tensor in file.tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            _fail(file, f"its tensor `{name}` is not a direction")
        if tensor.type.name != "F32" or tensor.shape != (total.shape[1],):
            size = "×".join(map(str, tensor.shape))
            _fail(file, f"`{name}` has {size} numbers of type {tensor.type.name}, not {total.shape[1]} of type F32")
        layer = int(found[1])
        if layer > len(total):
            _fail(file, f"`{name}` is for a layer that this model of {len(total) + 1} layers does not have")
        direction = np.frombuffer(bytes(file.tensor_data(name)), dtype="<f4")  # a copy: the file is closed soon
        if not isfinite(float(np.abs(direction).sum())):
            _fail(file, f"`{name}` has values that are not finite")
        total[layer - 1] += np.float32(scale) * direction


def _fail(file: GGUFFile, what: str) -> NoReturn:
    raise ConfigError(f"the control vector {file.path} cannot be used: {what}", key="control_vector")
