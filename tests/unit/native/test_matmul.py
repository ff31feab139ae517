"""The kernels against NumPy in float64, and against each other bit by bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.small_types import number_of
from tests.unit.native.packed import (
    ALL_TYPES,
    FLOATS,
    GRID_TYPES,
    TYPES,
    Packed,
    aligned,
    file_bytes,
    pack,
    random_packed,
)

KERNELS = _native.kernel_names()
FASTEST = KERNELS[-1]


def rows_of(count: int, columns: int, seed: int = 2) -> NDArray[np.float32]:
    """Rows of very different sizes, with a block of zeros and an outlier."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, columns)) * rng.uniform(0.01, 30, (count, 1))
    x[:, :32] = 0
    x[0, 40 % columns] = 100
    return x.astype(np.float32)


def quantised(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """What the kernels see of the rows: eight bits per block of 32."""
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    scale = amax * np.float32(1 / 127)
    return (np.rint(blocks * inverse).astype(np.float64) * scale).reshape(x.shape)


def error_bound(tensor: Packed, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of float32 sums: codes and minima may cancel, so not only |w| counts but the largest |w| of the row."""
    weights = np.abs(tensor.weights.astype(np.float64))
    weights += 2 * weights.max(axis=1, keepdims=True)
    return 3e-6 * (np.abs(seen) @ weights.T) + 1e-30


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ALL_TYPES)
def test_a_product_is_the_float64_product_of_what_was_quantised(name: str, kernels: str) -> None:
    tensor = random_packed(name, 40, 512)
    x = rows_of(21, 512)
    seen = x.astype(np.float64) if name in FLOATS else quantised(x)
    expected = seen @ tensor.weights.astype(np.float64).T
    error = np.abs(tensor.matmul(x, kernels) - expected)
    assert (error <= error_bound(tensor, seen)).all()


@pytest.mark.parametrize("name", ALL_TYPES)
def test_eight_bit_rows_cost_no_more_than_half_a_step_each(name: str) -> None:
    tensor = random_packed(name, 33, 768)
    x = rows_of(5, 768)
    steps = np.abs(x).reshape(5, -1, 32).max(axis=-1).repeat(32, axis=1) / 127
    exact = x.astype(np.float64) @ tensor.weights.astype(np.float64).T
    bound = (0.5001 * steps) @ np.abs(tensor.weights.astype(np.float64)).T + error_bound(tensor, x.astype(np.float64))
    assert (np.abs(tensor.matmul(x, FASTEST) - exact) <= bound).all()


@pytest.mark.parametrize("kernels", [name for name in KERNELS if name != "scalar"])
@pytest.mark.parametrize("name", ALL_TYPES)
@pytest.mark.parametrize(("rows", "columns", "count"), [(16, 256, 1), (50, 512, 7), (17, 768, 16), (40, 1280, 150)])
def test_every_instruction_set_computes_the_same_bits(
    name: str, kernels: str, rows: int, columns: int, count: int
) -> None:
    tensor = random_packed(name, rows, columns)
    x = rows_of(count, columns)
    np.testing.assert_array_equal(tensor.matmul(x, kernels), tensor.matmul(x, "scalar"))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ALL_TYPES)
def test_a_row_does_not_depend_on_its_batch(name: str, kernels: str) -> None:
    tensor = random_packed(name, 24, 512 if name in FLOATS else 256)
    x = rows_of(53, tensor.columns)
    whole = tensor.matmul(x, kernels)
    for count in (1, 2, 3, 5, 6, 7, 8, 9, 10, 12, 15, 16, 17, 24, 25, 31, 32, 33, 40, 48):
        np.testing.assert_array_equal(tensor.matmul(x[-count:], kernels), whole[-count:])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("count", [3, 40])
def test_tiles_can_be_computed_in_any_parts(name: str, kernels: str, count: int) -> None:
    tensor = random_packed(name, 16 * 7 + 3, 256)
    x = rows_of(count, 256)
    parts = sum(tensor.matmul(x, kernels, first, last) for first, last in [(0, 1), (1, 2), (2, 7), (7, 8)])
    np.testing.assert_array_equal(parts, tensor.matmul(x, kernels))


@pytest.mark.parametrize("columns", [32, 96, 576, 4128])
@pytest.mark.parametrize("count", [1, 20])
def test_rows_of_any_number_of_blocks(columns: int, count: int) -> None:
    tensor = random_packed("Q4_1", 20, columns)
    x = rows_of(count, columns)
    expected = quantised(x) @ tensor.weights.astype(np.float64).T
    y = tensor.matmul(x, FASTEST)
    assert (np.abs(y - expected) <= error_bound(tensor, quantised(x))).all()
    np.testing.assert_array_equal(y, tensor.matmul(x, "scalar"))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("columns", [32, 64, 96, 288, 320])
def test_any_number_of_blocks_of_any_number_of_rows_over_several_tiles(name: str, columns: int) -> None:
    tensor = random_packed(name, 16 * 8 + 5, columns)
    x = rows_of(150, columns)
    whole = tensor.matmul(x, "scalar")
    for count in (6, 7, 8, 9, 13, 16, 17, 24, 27, 32, 41, 128, 136, 150):
        np.testing.assert_array_equal(tensor.matmul(x[:count], FASTEST), whole[:count])


def test_more_rows_than_the_cache_holds_at_once() -> None:
    tensor = random_packed("Q8_0", 16, 8192)
    x = rows_of(150, 8192)
    y = tensor.matmul(x, FASTEST)
    np.testing.assert_array_equal(y[140:], tensor.matmul(x[140:], FASTEST))
    np.testing.assert_array_equal(y[:2], tensor.matmul(x[:2], "scalar"))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "MXFP4", "Q6_K"])
def test_the_largest_codes_do_not_overflow(name: str, kernels: str) -> None:
    x = np.where(np.arange(256) % 3 == 0, -1, 1).astype(np.float32).reshape(1, -1)
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        source = file_bytes(name, 16, 256, np.random.default_rng(3))
        kind = gguf.GGMLQuantizationType[name]
        if name == "Q8_0":
            source.reshape(-1, 34)[:, 2:] = fill
        elif name == "Q6_K":
            source[:, :208] = fill
        else:
            source.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])[:, 4:] = fill
        tensor = pack(name, source, 256)
        expected = quantised(x) @ tensor.weights.astype(np.float64).T
        assert (np.abs(tensor.matmul(x, kernels) - expected) <= error_bound(tensor, quantised(x))).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q2_K"])  # corrected by the sums of whole blocks, and of their halves
def test_the_sums_of_the_largest_activations(name: str, kernels: str) -> None:
    halves = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [0, -1], [-1, 0], [0, 0], [1, 0]])
    x = halves.repeat(16, axis=1).reshape(1, -1).repeat(3, axis=0).astype(np.float32)
    tensor = random_packed(name, 16, 256)
    expected = quantised(x) @ tensor.weights.astype(np.float64).T
    y = tensor.matmul(x, kernels)
    assert (np.abs(y - expected) <= error_bound(tensor, quantised(x))).all()
    np.testing.assert_array_equal(y, tensor.matmul(x, "scalar"))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ALL_TYPES)
def test_an_unpacked_row_is_exactly_the_files(name: str, kernels: str) -> None:
    tensor = random_packed(name, 35, 512)
    for row in (0, 15, 16, 34):
        np.testing.assert_array_equal(tensor.unpack_row(row, kernels), tensor.weights[row])


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_exponent_of_mxfp4_is_exact(kernels: str) -> None:
    source = file_bytes("MXFP4", 256, 32, np.random.default_rng(4))
    source[:, 0] = np.arange(256)
    with np.errstate(over="ignore"):
        tensor = pack("MXFP4", source, 32)
    for row in (0, 1, 2, 3, 127, 200, 254, 255):
        np.testing.assert_array_equal(tensor.unpack_row(row, kernels), tensor.weights[row])


@pytest.mark.parametrize("name", TYPES)
def test_packing_keeps_the_files_size(name: str) -> None:
    source = file_bytes(name, 256, 2048, np.random.default_rng(5))
    most = 1.12 if name == "NVFP4" else 1.04  # its scales have two bytes instead of one
    assert _native.packed_bytes(number_of(name), 256, 2048) <= most * source.size


@pytest.mark.parametrize("name", GRID_TYPES)
def test_entries_of_grids_are_packed_as_entries(name: str) -> None:
    source = file_bytes(name, 256, 2048, np.random.default_rng(5))
    assert _native.packed_bytes(number_of(name), 256, 2048) <= 1.13 * source.size


@pytest.mark.parametrize("name", ALL_TYPES)
def test_packing_is_a_function_of_the_source_alone(name: str) -> None:
    kind = number_of(name)
    source = file_bytes(name, 19, 768, np.random.default_rng(6))
    whole = pack(name, source, 768).packed
    in_parts = aligned(whole.size)
    tile = whole.size // 2
    _native.pack(kind, source[:16], 16, 768, in_parts[:tile])
    _native.pack(kind, source[16:], 3, 768, in_parts[tile:])
    np.testing.assert_array_equal(in_parts, whole)


def test_what_cannot_be_packed_is_said() -> None:
    assert not _native.can_pack(12, 128)
    assert not _native.can_pack(15, 256)
    assert not _native.can_pack(2, 0)
    with pytest.raises(ValueError, match="no kernels for this tensor type"):
        _native.packed_bytes(12, 16, 128)
    with pytest.raises(ValueError, match="source buffer is too small"):
        _native.pack(2, b"short", 16, 32, aligned(4096))
    with pytest.raises(ValueError, match="packed buffer is too small"):
        _native.pack(2, bytes(18 * 16), 16, 32, aligned(64))
    with pytest.raises(ValueError, match="no such kernels"):
        random_packed("Q4_0", 16, 32).matmul(rows_of(1, 32), "abacus")
