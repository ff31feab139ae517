"""Behind what the kernels are given, and are to write, no instruction touches anything. Sanitizers do not see all.

Memory here ends where a page begins that nobody may touch, so that the process would end there. Memory that the kernels
take for themselves ends so in the build that `tools/sanitize.py guard` makes.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.small_types import block_of
from tests.unit.native.packed import ALL_TYPES, Packed, random_packed
from tests.unit.native.tiny import Built, Slots, Tiny, build, maxima_of, token_ids

OUTPUTS = 50
"""Not a multiple of a tile's."""
ROWS = (1, 7, 8, 9, 16, 17, 40)


def before_a_border(values: NDArray[Any]) -> NDArray[Any]:
    """A copy that ends where a page begins that nobody may touch."""
    size = -(-max(values.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    closed = ctypes.c_void_p(whole.ctypes.data + size)
    if ctypes.CDLL(None).mprotect(closed, ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        pytest.skip("this system does not close pages")
    copy = whole[size - values.nbytes : size].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("name", ALL_TYPES)
def test_products(name: str, kernels: str) -> None:
    for columns in (256, 512) if block_of(name)[0] > 32 else (32, 96, 128):
        tensor = random_packed(name, OUTPUTS, columns)
        bordered = Packed(tensor.type, OUTPUTS, columns, tensor.weights, before_a_border(tensor.packed))
        for rows in ROWS:
            x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
            y = before_a_border(np.zeros((rows, OUTPUTS), np.float32))
            _native.matmul(tensor.type, bordered.packed, OUTPUTS, columns, before_a_border(x), y, 0, -1, kernels)
            np.testing.assert_array_equal(y, tensor.matmul(x, kernels))
        np.testing.assert_array_equal(bordered.unpack_row(OUTPUTS - 1, kernels), tensor.weights[OUTPUTS - 1])


@pytest.mark.parametrize("kv_type", ["f16", "q8", "q4", "q16", "i16"])
@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize(("group", "head_size"), [(4, 16), (3, 48), (9, 64)])
def test_forward_passes(group: int, head_size: int, kernels: str, kv_type: str) -> None:
    tiny = Tiny(num_heads=2 * group, head_size=head_size, hidden_size=32, num_layers=1, types=("Q8_0", "F32"))
    built = build(tiny)
    bordered = Built(tiny, built.description, built.floats, before_a_border(built.memory))
    ids = token_ids(70, tiny)
    decoder = bordered.open(kernels=kernels, kv_type=kv_type, num_pages=3, max_batch_tokens=33)
    tables = before_a_border(np.array([[2, 0, 1]], np.int32))
    rows, start = list[NDArray[np.float32]](), 0
    for size in (33, 1, 1, 30, 5):
        logits = before_a_border(np.zeros((size, tiny.vocab_size), np.float32))
        maxima = before_a_border(np.zeros((size, _native.num_maxima(tiny.vocab_size)), np.float32))
        chunk = before_a_border(np.array([[0, start, size, size]], np.int32))
        tokens = before_a_border(np.array(ids[start : start + size], np.int32))
        decoder.forward(tokens, chunk, tables, logits, maxima=maxima)
        np.testing.assert_array_equal(maxima, maxima_of(logits))
        rows.append(logits)
        start += size
    wanted = Slots(built.open(kernels="scalar", kv_type=kv_type), built).all_logits(0, ids)
    np.testing.assert_array_equal(np.concatenate(rows), wanted)
