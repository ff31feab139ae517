"""Attention on codes of 8 and 4 bits with scales for groups: keys and values are rounded, the rest hardly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native.test_decoder_numbers import computed, relative_error
from tests.unit.native.tiny import ATTENTIONS, F64, Built, Reference, Slots, Tiny, build, token_ids

_SPAN = 512
_MOST_CODE = 127 * 256 + 127
"""Of queries and weights."""


class GroupedReference(Reference):
    """Queries, keys, values and weights as codes; everything else as it was."""

    def __init__(self, built: Built, kv_type: str) -> None:
        super().__init__(built)
        self.kv_type = kv_type

    def attend(self, q: F64, k: F64, v: F64, seen: NDArray[np.bool_]) -> F64:
        q, k, v = (spread(x) for x in (q, k, v))
        q_scale = np.abs(q).max(-1, keepdims=True) / _MOST_CODE
        codes, scales = eight_bits(in_groups(k))
        keys = (codes * scales).reshape(k.shape)
        v_codes, v_scales = (four_bits if self.kv_type == "q4" else eight_bits)(in_groups(v))
        scores = np.einsum("ihd,jhd->hij", np.rint(q / q_scale) * q_scale, keys)
        if self.t.attention_softcap:
            scores = self.t.attention_softcap * np.tanh(scores / self.t.attention_softcap)
        scores = np.where(seen, scores, -np.inf)
        most = scores.max(-1, keepdims=True)
        totals = np.exp(scores - most).sum(-1)
        sums = np.zeros((q.shape[1], len(q), *v_codes.shape[2:]))
        for begin in range(0, len(k), _SPAN):
            span = slice(begin, begin + _SPAN)
            products = np.exp(scores - most)[:, :, span, None] * v_scales[span, :, :, 0].transpose(1, 0, 2)[:, None]
            steps = np.abs(products).max(2, keepdims=True) / _MOST_CODE
            weights = np.rint(products / np.where(steps == 0, 1, steps)) * steps
            sums += np.einsum("hijg,jhgd->higd", weights, v_codes[span])
        means = sums / totals[:, :, None, None]
        return spread(means.transpose(1, 0, 2, 3).reshape(q.shape)).reshape(len(q), -1)


def spread(x: F64) -> F64:
    """Hadamard's matrix of the largest power of two that divides the last axis, times each run of so many elements."""
    size = x.shape[-1] & -x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (x.reshape(*x.shape[:-1], -1, size) @ matrix / size**0.5).reshape(x.shape)


def in_groups(x: F64) -> F64:
    return x.reshape(*x.shape[:-1], -1, 32 if x.shape[-1] % 32 == 0 else 16)


def eight_bits(groups: F64) -> tuple[F64, F64]:
    """Codes and scales."""
    scales = np.abs(groups).max(-1, keepdims=True) / 127
    return np.rint(groups / scales), scales


def four_bits(groups: F64) -> tuple[F64, F64]:
    """By that scale of some with which a group is closest to what it was."""
    most = np.take_along_axis(groups, np.abs(groups).argmax(-1)[..., None], -1)
    found = list[tuple[F64, F64]]()
    for largest in (-8, -7, -7.5, -8.5, -9):
        bits = ((most / largest).astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000
        scales = bits.astype(np.uint32).view(np.float32).astype(np.float64)
        found.append((np.clip(np.rint(groups / scales), -8, 7), scales))
    errors = np.stack([((codes * scales - groups) ** 2).sum(-1) for codes, scales in found])
    best = errors.argmin(0)[None, ..., None]
    codes, scales = (np.take_along_axis(np.stack(parts), best, 0)[0] for parts in zip(*found, strict=True))
    return codes, scales


@pytest.mark.parametrize("tiny", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("kv_type", ["q8", "q4"])
def test_only_codes_are_rounded(tiny: Tiny, kv_type: str) -> None:
    """A code that float32 rounds otherwise costs a step of it: that is rare."""
    built, ids = build(tiny), token_ids(100, tiny)
    rows, coded, exact = computed(built, ids, kv_type=kv_type), GroupedReference(built, kv_type), Reference(built)
    cost = relative_error(exact.logits(ids).astype(np.float32), coded.logits(ids))
    assert relative_error(rows, coded.logits(ids)) < 0.05 * cost


@pytest.mark.parametrize("kv_type", ["q8", "q4"])
def test_spans_have_steps_of_their_own(kv_type: str) -> None:
    built = build(Tiny(num_heads=2, num_kv_heads=1, num_layers=1, sharpness=20))
    ids = token_ids(1100, built.tiny)
    rows = Slots(built.open(num_pages=160, kv_type=kv_type), built, pages_each=40).all_logits(0, ids, [550])
    assert relative_error(rows, GroupedReference(built, kv_type).logits(ids)) < 1e-3


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv_type", ["q8", "q4"])
def test_the_largest_heads_give_the_same_bits_on_every_cpu(kv_type: str, kernels: str) -> None:
    """Beyond a span, so that rows of codes are full of queries, and of weights."""
    built = build(Tiny(head_size=576, num_heads=2, num_kv_heads=1, num_layers=1))
    ids = token_ids(600, built.tiny)
    rows = computed(built, ids, kv_type=kv_type, kernels=kernels)
    np.testing.assert_array_equal(rows, computed(built, ids, kv_type=kv_type, kernels="scalar"))
    assert relative_error(rows, GroupedReference(built, kv_type).logits(ids)) < 1e-3


@pytest.mark.parametrize("kv_type", ["q8", "q4"])
def test_heads_too_large_for_rows_of_codes_are_refused(kv_type: str) -> None:
    built = build(Tiny(head_size=592, num_heads=2, num_kv_heads=1, num_layers=1))
    with pytest.raises(ValueError, match="too large for q8 and q4"):
        built.open(kv_type=kv_type)
    built.open(kv_type="f16").close()
