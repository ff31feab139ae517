"""Converts tensors of any type to floats, for small matrices that are not computed in their packed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.file import FLOAT_TYPES, TensorEntry, plain_floats
from stoker.backends.native.layout import ALIGNMENT


def plain_rows(entry: TensorEntry, data: bytes | memoryview) -> NDArray[np.floating[Any]]:
    """All rows of a tensor, `(rows, columns)`: F16 as float16, other types as float32.

    Args:
        entry: the tensor; `can_be_plain` is true for it.
        data: the bytes of the tensor.
    """
    columns, kind = entry.shape[0], entry.type.number
    if entry.type.name in FLOAT_TYPES:
        return plain_floats(entry.type.name, data).reshape(-1, columns)
    rows = int(np.prod(entry.shape[1:]))
    packed = _aligned(_native.packed_bytes(kind, rows, columns))
    _native.pack(kind, data, rows, columns, packed)
    found = np.empty((rows, columns), dtype=np.float32)
    for row in range(rows):
        _native.unpack_row(kind, packed, rows, columns, row, found[row])
    return found


def _aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Zeros whose address is a multiple of ALIGNMENT."""
    room = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + num_bytes]
