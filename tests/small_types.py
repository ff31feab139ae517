"""Types of tensors with one or two bits a weight that the gguf package does not read, or does not know."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

_SIZES = {"Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}
SMALL_TYPES = tuple(_SIZES)


def number_of(name: str) -> int:
    return _SIZES[name][0] if name in _SIZES else int(gguf.GGMLQuantizationType[name])


def block_of(name: str) -> tuple[int, int]:
    """Weights and bytes of a block."""
    return _SIZES[name][1:] if name in _SIZES else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def dequantized(name: str, raw: NDArray[Any]) -> NDArray[np.float32]:
    """Weights of `(..., bytes)`, or of floats, as llama.cpp's dequantize_row_q1_0 and _q2_0 have them."""
    if name not in _SIZES:
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).astype(np.float32)
    blocks = raw.reshape(-1, block_of(name)[1])
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.int8)
    codes = 2 * bits - 1 if name == "Q1_0" else bits[:, 0::2] + 2 * bits[:, 1::2] - 1
    return (scales * codes).astype(np.float32).reshape(*raw.shape[:-1], -1)
