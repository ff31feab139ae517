"""Types of GGML, taken apart, are the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from stoker.export.blocks import BLOCK_TYPES
from stoker.export.rows import dequantized
from tests.tiny_models import BLOCK_TYPES as BLOCK_NAMES
from tests.tiny_models import FLOAT_TYPES, K_TYPES


def random_rows(kind: GGMLQuantizationType, seed: int = 0) -> np.ndarray:
    """Rows in which every bit is random, but for exponents that are neither infinite nor tiny."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 1024 // block_size, block_bytes), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
    both = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    for at in halves.get(kind.name, (0, 2) if kind.name in both else (0,)):
        blocks[..., at + 1] = blocks[..., at + 1] & 0x83 | 0x28
    if kind.name == "MXFP4":
        blocks[..., 0] = blocks[..., 0] % 60 + 100
    return blocks.reshape(5, -1)


def test_every_type_of_the_native_executor_is_known() -> None:
    assert set(BLOCK_TYPES) == {*BLOCK_NAMES, *K_TYPES}


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_the_numbers_are_those_of_ggml(name: str) -> None:
    kind, raw = BLOCK_TYPES[name], random_rows(GGMLQuantizationType[name])
    blocks = kind.blocks(raw)
    expected = dequantize(raw, GGMLQuantizationType[name])
    found = blocks.weights(kind.shape.zero_point)
    if blocks.offsets is not None:  # one rounding of float32, of the offset's size
        np.testing.assert_allclose(found, expected, rtol=0, atol=2**-22 * float(np.abs(blocks.offsets).max()))
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_codes_fit_their_bits_and_blocks_are_cut_as_the_shape_says(name: str) -> None:
    kind = BLOCK_TYPES[name]
    blocks = kind.blocks(random_rows(GGMLQuantizationType[name]))
    assert blocks.codes.shape == (5, 1024 // kind.shape.size, kind.shape.size)
    assert blocks.scales.shape == (5, 1024 // kind.shape.size)
    assert blocks.codes.max() < 1 << kind.shape.bits
    assert (blocks.offsets is not None) == kind.shape.has_offsets


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_plain_numbers(name: str) -> None:
    kind = GGMLQuantizationType[name]
    raw = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32).view(np.uint8)
    raw = raw if name == "F32" else raw.reshape(3, -1, 4)[..., 2:].reshape(3, -1)
    np.testing.assert_array_equal(dequantized(name, raw), dequantize(raw, kind).astype(np.float32))
