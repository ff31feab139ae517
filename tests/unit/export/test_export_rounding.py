"""Rounding to few bits: how near, and that the error that is told is the real one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stoker.export.matrices import RoundingError, round_to_4_bits, round_to_8_bits

WEIGHTS = np.random.default_rng(0).normal(0.1, 1, (7, 96)).astype(np.float32)


def rounded_to_8(weights: np.ndarray) -> np.ndarray:
    blocks, _ = round_to_8_bits(weights)
    return blocks.weights(128)


def rounded_to_4(weights: np.ndarray) -> np.ndarray:
    blocks, zeros = round_to_4_bits(weights)
    found = (blocks.codes.astype(np.float32) - zeros[..., None]) * blocks.scales[..., None]
    return found.reshape(weights.shape)


def test_8_bits_are_half_a_step_away_at_most() -> None:
    steps = np.abs(WEIGHTS.reshape(7, 3, 32)).max(axis=-1, keepdims=True) / 127
    assert (np.abs((rounded_to_8(WEIGHTS) - WEIGHTS).reshape(7, 3, 32)) <= steps * 0.501).all()


def test_4_bits_are_nearer_than_16_even_steps_over_the_whole_range() -> None:
    blocks = WEIGHTS.reshape(7, 3, 32)
    low = blocks.min(axis=-1, keepdims=True)
    steps = (blocks.max(axis=-1, keepdims=True) - low) / 15
    zero = np.rint(-low / steps)
    naive = (np.clip(np.rint(blocks / steps) + zero, 0, 15) - zero) * steps
    assert np.square(rounded_to_4(WEIGHTS) - WEIGHTS).sum() < 0.95 * np.square(naive - blocks).sum()


@pytest.mark.parametrize("rounded", [rounded_to_8, rounded_to_4])
@pytest.mark.parametrize("values", [0.0, 3.0, -2.0])
def test_blocks_of_one_number(rounded: Callable[[np.ndarray], np.ndarray], values: float) -> None:
    weights = np.full((2, 64), values, dtype=np.float32)
    np.testing.assert_allclose(rounded(weights), weights, rtol=1e-6)


@pytest.mark.parametrize("values", [range(16), range(-3, 13), range(-15, 1), range(-7, 9)], ids=str)
def test_what_has_4_bits_already_is_kept(values: range) -> None:
    weights = np.resize(np.array(values, dtype=np.float32) * 0.25, (1, 64))
    np.testing.assert_allclose(rounded_to_4(weights), weights, atol=1e-6)


def test_the_error_is_counted_over_everything_that_is_added() -> None:
    error = RoundingError()
    assert error.relative == 0
    for rows in (WEIGHTS[:3], WEIGHTS[3:]):
        error.add(rows, rounded_to_4(rows))
    expected = np.linalg.norm(WEIGHTS - rounded_to_4(WEIGHTS)) / np.linalg.norm(WEIGHTS)
    assert error.relative == pytest.approx(expected, rel=1e-5)
    assert 0.02 < error.relative < 0.12
