"""The elements of a matrix of any type as floats, of those that are small and computed with as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.file import FLOAT_TYPES, TensorEntry, plain_floats
from stoker.backends.native.layout import ALIGNMENT


def plain_rows(entry: TensorEntry, data: bytes | memoryview) -> NDArray[np.floating[Any]]:
    """All rows of a tensor, `(rows, columns)`: half floats as they are, all else as float32.

    Args:
        entry: of the tensor, of which `can_be_plain` is true.
        data: its bytes.
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
    """Zeros, from a multiple of ALIGNMENT on."""
    room = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + num_bytes]
