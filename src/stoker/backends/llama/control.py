"""Control vectors: directions that are added to the hidden states after some layers, in a whole context."""

from __future__ import annotations

from ctypes import POINTER, c_float
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library
from stoker.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class ControlVector:
    """A control vector in the form that libllama takes: a direction for each layer, and the range of layers."""

    directions: NDArray[np.float32]
    """`(layers, hidden size)`, float32: row i is added after layer i + 1, counted from 0."""
    first_layer: int
    last_layer: int
    """Last layer after which a direction is added; `first_layer` is the first."""
    identity: str
    """A name that differs whenever the numbers differ: KV with another control vector must not be used."""

    def apply(self, context: int) -> None:
        """Applies the control vector to everything that the context computes from now on.

        Raises:
            ConfigError: libllama refuses the control vector.
        """
        flat = np.ascontiguousarray(self.directions, dtype=np.float32)
        code = library().llama_set_adapter_cvec(
            context,
            flat.ctypes.data_as(POINTER(c_float)),
            flat.size,
            flat.shape[1],
            self.first_layer,
            self.last_layer,
        )
        if code:
            raise ConfigError("libllama refuses the control vector", key="control_vector")
