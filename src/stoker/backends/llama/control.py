"""Control vectors: directions that are added to the hidden states behind some layers. They hold for a whole context."""

from __future__ import annotations

from ctypes import POINTER, c_float
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library
from stoker.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class ControlVector:
    """What is added behind each layer, ready to use."""

    directions: NDArray[np.float32]
    """`(layers, hidden size)`, float32: row i is added behind layer i + 1, counted from 0."""
    first_layer: int
    last_layer: int
    """Behind the layers outside of these two, nothing is added."""
    identity: str
    """Differs whenever the numbers do: KV made under another one must not be read."""

    def apply(self, context: int) -> None:
        """Sets it for everything that the context computes.

        Raises:
            ConfigError: libllama refuses it.
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
