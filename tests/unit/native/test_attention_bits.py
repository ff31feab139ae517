"""Attention gives the same bits for each way to share it out, for the head sizes and groups whose kernels differ."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.brief import every
from tests.unit.native.tiny import Built, Slots, Tiny, build, token_ids

_LENGTH = 75
_SHAPES = [(7, 1, 64), (5, 1, 96), (2, 1, 144), (6, 2, 80), (8, 1, 128), (16, 1, 48), (40, 1, 16)]
"""Query heads, KV heads, head size: groups of each number of rows at once, heads of whole and of broken vectors."""


@cache
def _built(heads: int, kv_heads: int, head_size: int) -> Built:
    windows = (0, 40)
    return build(Tiny(num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, windows=windows, hidden_size=32))


@cache
def _wanted(heads: int, kv_heads: int, head_size: int, kv_type: str) -> NDArray[np.float32]:
    built = _built(heads, kv_heads, head_size)
    slots = Slots(built.open(kernels="scalar", kv_type=kv_type), built)
    return slots.all_logits(0, token_ids(_LENGTH, built.tiny), [1])


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8", "q4", "q16", "i16"])
@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("shape", every(3, _SHAPES))
def test_heads_and_groups(shape: tuple[int, int, int], kernels: str, kv_type: str) -> None:
    built = _built(*shape)
    slots = Slots(built.open(kernels=kernels, kv_type=kv_type), built)
    rows = slots.all_logits(0, token_ids(_LENGTH, built.tiny), [1, 1, 30, 3, 1])
    np.testing.assert_array_equal(rows, _wanted(*shape, kv_type))


@pytest.mark.parametrize("kv_type", ["f16", "q16", "i16"])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_rows_of_different_pasts_on_more_and_fewer_threads_than_they_are(threads: int, kv_type: str) -> None:
    """Threads have units of their own and take those of others; all of them are computed, and once."""
    built = build(Tiny(num_heads=6, num_kv_heads=2, head_size=64, hidden_size=32, num_layers=3))
    ids = [token_ids(count, built.tiny, seed=count) for count in (60, 1, 33, 90)]
    one = built.open(kv_type=kv_type)
    wanted = [Slots(one, built).all_logits(slot, each) for slot, each in enumerate(ids)]
    slots = Slots(built.open(kv_type=kv_type, num_threads=threads), built)
    for slot, each in enumerate(ids):
        if len(each) > 3:
            slots.step([(slot, each[:-3], 0)])
    for left in (3, 2, 1):
        taking = [slot for slot, each in enumerate(ids) if len(each) >= left]
        rows = slots.step([(slot, [ids[slot][-left]], 1) for slot in taking])
        np.testing.assert_array_equal(rows, np.stack([wanted[slot][-left] for slot in taking]))
