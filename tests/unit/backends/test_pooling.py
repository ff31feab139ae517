"""Pooling: the same embedding whether a sequence comes whole or in pieces, with others or alone."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.backends.pooling import Pool
from stoker.core.embedding import Piece, Pooling

RNG = np.random.default_rng(1)
HIDDEN = RNG.normal(size=(10, 6)).astype(np.float32)
OTHER = RNG.normal(size=(3, 6)).astype(np.float32)
EXPECTED = {Pooling.MEAN: HIDDEN.mean(axis=0), Pooling.CLS: HIDDEN[0], Pooling.LAST: HIDDEN[-1]}


def piece(slot: int, start: int, end: int, *, is_last: bool) -> Piece:
    return Piece(slot, start, tuple(range(start, end)), is_last)


@pytest.mark.parametrize("pooling", EXPECTED)
def test_whole(pooling: Pooling):
    rows = Pool(pooling, 6).push([piece(1, 0, 10, is_last=True)], HIDDEN)
    np.testing.assert_allclose(rows, [EXPECTED[pooling]], rtol=1e-6)


@pytest.mark.parametrize("pooling", EXPECTED)
def test_in_pieces_beside_another(pooling: Pooling):
    pool = Pool(pooling, 6)
    assert pool.push([piece(0, 0, 4, is_last=False)], HIDDEN[:4]).shape == (0, 6)
    both = [piece(0, 4, 7, is_last=False), piece(1, 0, 3, is_last=True)]
    (other,) = pool.push(both, np.concatenate([HIDDEN[4:7], OTHER]))
    (alone,) = Pool(pooling, 6).push([piece(1, 0, 3, is_last=True)], OTHER)
    np.testing.assert_array_equal(other, alone)
    rows = pool.push([piece(0, 7, 10, is_last=True)], HIDDEN[7:])
    np.testing.assert_allclose(rows, [EXPECTED[pooling]], rtol=1e-6)


def test_next_sequence_in_slot_0_begins_anew():
    pool = Pool(Pooling.MEAN, 6)
    pool.push([piece(0, 0, 4, is_last=False)], HIDDEN[:4])
    (row,) = pool.push([piece(0, 0, 3, is_last=True)], OTHER)
    np.testing.assert_allclose(row, OTHER.mean(axis=0), rtol=1e-6)
