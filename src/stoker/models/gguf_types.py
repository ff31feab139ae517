"""The numbers of the GGUF format: value types, tensor types and file types. No file is read here.

Numbers and sizes follow `ggml.h` and `llama.h` of llama.cpp; a test compares them with the `gguf` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ValueType(IntEnum):
    """Types of metadata values, as they stand in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<B",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
"""`struct` formats of the scalar types, which numpy reads as dtypes, too."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """How elements are packed: `block_size` elements along the first dimension take `block_bytes` bytes."""

    number: int
    name: str
    block_size: int
    block_bytes: int


_TENSOR_TYPES = (
    TensorType(0, "F32", 1, 4),
    TensorType(1, "F16", 1, 2),
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(8, "Q8_0", 32, 34),
    TensorType(9, "Q8_1", 32, 40),
    TensorType(10, "Q2_K", 256, 84),
    TensorType(11, "Q3_K", 256, 110),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(14, "Q6_K", 256, 210),
    TensorType(15, "Q8_K", 256, 292),
    TensorType(16, "IQ2_XXS", 256, 66),
    TensorType(17, "IQ2_XS", 256, 74),
    TensorType(18, "IQ3_XXS", 256, 98),
    TensorType(19, "IQ1_S", 256, 50),
    TensorType(20, "IQ4_NL", 32, 18),
    TensorType(21, "IQ3_S", 256, 110),
    TensorType(22, "IQ2_S", 256, 82),
    TensorType(23, "IQ4_XS", 256, 136),
    TensorType(24, "I8", 1, 1),
    TensorType(25, "I16", 1, 2),
    TensorType(26, "I32", 1, 4),
    TensorType(27, "I64", 1, 8),
    TensorType(28, "F64", 1, 8),
    TensorType(29, "IQ1_M", 256, 56),
    TensorType(30, "BF16", 1, 2),
    TensorType(34, "TQ1_0", 256, 54),
    TensorType(35, "TQ2_0", 256, 66),
    TensorType(39, "MXFP4", 32, 17),
    TensorType(40, "NVFP4", 64, 36),
    TensorType(41, "Q1_0", 128, 18),
    TensorType(42, "Q2_0", 64, 18),
)

TENSOR_TYPES: dict[int, TensorType] = {kind.number: kind for kind in _TENSOR_TYPES}

FILE_TYPE_NAMES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}
"""Names of `general.file_type`, the quantization of a file as a whole."""
