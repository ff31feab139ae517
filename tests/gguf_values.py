"""Metadata of GGUF files that tests write: each value in the type that writers of models give it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray


def write_values(writer: GGUFWriter, values: Mapping[str, Any]) -> None:
    """Adds whatever is not None; what is neither a text nor a number is an array."""
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_array(key, value)


def set_half(blocks: NDArray[np.uint8], type_name: str, at: int, values: NDArray[np.float64]) -> None:
    """Writes a float16 to each block, `(..., bytes)`, at this byte; IQ1_M has its bits in four places."""
    halves = values.astype(np.float16)[..., None]
    if type_name != "IQ1_M":
        blocks[..., at : at + 2] = halves.view(np.uint8)
        return
    quarters = halves.view(np.uint16) >> np.arange(0, 16, 4) & 15
    blocks[..., 49:57:2] = blocks[..., 49:57:2] & 15 | quarters << 4
