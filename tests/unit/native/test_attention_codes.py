"""Attention on 16-bit codes: its own rounding and nothing else; numbers that are zero, tiny, huge or none at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native.packed import pack
from tests.unit.native.test_decoder_numbers import computed, relative_error
from tests.unit.native.tiny import ATTENTIONS, F64, Built, Reference, Slots, Tiny, build, token_ids

_SPAN = 512
TYPES = ("q16", "i16")
_ALL_TYPES = (*TYPES, "q8", "q4")
_COARSENESS = {"q16": 1, "i16": 2.5, "q8": 100, "q4": 1000}
"""Of codes, beside those of q16: 8191 steps instead of 32639 for values, 46300 for the length of a key; few bits."""


class CodedReference(Reference, ABC):
    """Queries, keys, values and weights as codes, made and multiplied by type; everything else as it was."""

    most_weight: int

    def attend(self, q: F64, k: F64, v: F64, seen: NDArray[np.bool_]) -> F64:
        q_scale, k_scale, v_scale = self.scale(q), rounded_up(self.scale(k)), power_above(self.value_scale(v))
        k_codes, v_codes = (np.rint(x / s[..., None]) for x, s in ((k, k_scale), (v, v_scale)))
        q_codes = self.rounded(q / q_scale[..., None])
        scores = self.product("ihd,jhd->hij", q_codes, k_codes) * q_scale.T[:, :, None] * k_scale.T[:, None, :]
        if self.t.attention_softcap:
            scores = self.t.attention_softcap * np.tanh(scores / self.t.attention_softcap)
        exponents = np.where(seen, scores * np.log2(np.e) + np.log2(v_scale).T[:, None, :], -np.inf)
        offset = exponents.max(-1, keepdims=True)
        sums, totals = np.zeros((q.shape[1], len(q), q.shape[2])), np.zeros(offset.shape)
        for begin in range(0, len(k), _SPAN):
            span = slice(begin, begin + _SPAN)
            highest = exponents[..., span].max(-1, keepdims=True)
            highest = np.where(np.isfinite(highest), highest, 0.0)
            weights = self.most_weight * 2.0 ** (exponents[..., span] - highest)
            share = 2.0 ** np.where(np.isfinite(highest), highest - offset, -np.inf)
            sums = sums + self.product("hij,jhd->hid", self.rounded(weights), v_codes[span]) * share
            totals = totals + (weights / v_scale[span].T[:, None, :]).sum(-1, keepdims=True) * share
        return (sums / totals).transpose(1, 0, 2).reshape(len(q), -1)

    @abstractmethod
    def scale(self, x: F64) -> F64:
        """Of the codes of a query or key."""

    @abstractmethod
    def value_scale(self, x: F64) -> F64: ...

    @abstractmethod
    def rounded(self, x: F64) -> F64:
        """Codes of queries and weights."""

    @abstractmethod
    def product(self, axes: str, a: F64, b: F64) -> F64: ...


class Bytes(CodedReference):
    """Codes in two bytes, whose low one is not -128 in queries and weights; products of two low bytes are left out."""

    most_weight = 127 * 256 + 127

    def scale(self, x: F64) -> F64:
        return np.abs(x).max(-1) / self.most_weight

    def value_scale(self, x: F64) -> F64:
        return self.scale(x)

    def rounded(self, x: F64) -> F64:
        codes = np.rint(x)
        return codes + (low_byte(codes) == -128)

    def product(self, axes: str, a: F64, b: F64) -> F64:
        return np.einsum(axes, a, b) - np.einsum(axes, low_byte(a), low_byte(b))


class Whole(CodedReference):
    """Codes of at most 46300 as a vector, so that sums of products fit into 32 bits; those of values are smaller."""

    most_weight = 32767

    def scale(self, x: F64) -> F64:
        return np.maximum(np.linalg.norm(x, axis=-1) / 46300, np.abs(x).max(-1) / self.most_weight)

    def value_scale(self, x: F64) -> F64:
        return np.abs(x).max(-1) / 8191

    def rounded(self, x: F64) -> F64:
        return np.rint(x)

    def product(self, axes: str, a: F64, b: F64) -> F64:
        return np.einsum(axes, a, b)


REFERENCES: dict[str, type[CodedReference]] = {"q16": Bytes, "i16": Whole}


def power_above(scale: F64) -> F64:
    return 2.0 ** (np.floor(np.log2(scale)) + 1)


def rounded_up(scale: F64) -> F64:
    """To 8 bits."""
    step = 2.0 ** (np.floor(np.log2(scale)) - 7)
    return np.ceil(scale / step) * step


def low_byte(codes: F64) -> F64:
    return (codes + 128) % 256 - 128


@pytest.mark.parametrize("tiny", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("kv_type", TYPES)
def test_only_codes_are_rounded(tiny: Tiny, kv_type: str) -> None:
    """A quarter of what codes cost is left for those that float32 rounds otherwise: weights are exact to 3e-6."""
    built, ids = build(tiny), token_ids(100, tiny)
    rows, coded, exact = (computed(built, ids, kv_type=kv_type), REFERENCES[kv_type](built), Reference(built))
    cost = relative_error(exact.logits(ids).astype(np.float32), coded.logits(ids))
    assert relative_error(rows, coded.logits(ids)) < 0.25 * cost


@pytest.mark.parametrize("kv_type", TYPES)
def test_spans_have_maxima_of_their_own(kv_type: str) -> None:
    built = build(Tiny(num_heads=2, num_kv_heads=1, num_layers=1, sharpness=20))
    ids = token_ids(1100, built.tiny)
    rows = Slots(built.open(num_pages=160, kv_type=kv_type), built, pages_each=40).all_logits(0, ids, [550])
    assert relative_error(rows, REFERENCES[kv_type](built).logits(ids)) < 4e-5


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv_type", TYPES)
def test_the_largest_weight_of_huge_scores_is_a_code(kv_type: str, kernels: str) -> None:
    built = build(Tiny(num_layers=1, head_size=64, sharpness=1e5))
    ids = token_ids(100, built.tiny)
    rows = computed(built, ids, kv_type=kv_type, kernels=kernels)
    assert relative_error(rows, REFERENCES[kv_type](built).logits(ids)) < 1e-4
    np.testing.assert_array_equal(rows, computed(built, ids, kv_type=kv_type, kernels="scalar"))


def with_tokens(tiny: Tiny, columns: Mapping[str, Mapping[int, float]]) -> Built:
    """A decoder in which token t alone decides by column t of a matrix what its query, key and value are.

    Args:
        tiny: of one layer, with matrices of F32.
        columns: what columns of a matrix are multiplied with.
    """
    built = build(tiny)
    embedding = np.eye(tiny.vocab_size, tiny.hidden_size)
    embedding[0] = 0  # its key and value are zeros
    _replace(built, "embedding", built.description["embedding"], embedding)
    layer = built.description["layers"][0]
    for name, factors in columns.items():
        values = built.floats[f"0.{name}"].copy()
        for column, factor in factors.items():
            values[:, column] *= factor
        _replace(built, f"0.{name}", layer[name], values)
    return built


def _replace(built: Built, name: str, place: tuple[int, int, int, int, int], values: F64) -> None:
    data = values.astype(np.float32)
    packed = pack("F32", data.view(np.uint8), values.shape[1]).packed
    built.memory[place[3] : place[3] + len(packed)] = packed
    built.floats[name] = data.astype(np.float64)


ONE_LAYER = Tiny(num_layers=1, is_tied=False, num_heads=6, num_kv_heads=2, head_size=64)
IDS = [1 + i % 11 for i in range(77)]
EXTREME_IDS = [*IDS, 0, 0, 7]
WANTED: dict[str, F64] = {}
"""By what columns are multiplied with; shared by all types and kernels."""


SCALAR: dict[tuple[str, str], NDArray[np.float32]] = {}
"""By those and the type; shared by all kernels."""


def wanted_of(columns: str, built: Built) -> F64:
    if columns not in WANTED:
        with np.errstate(under="ignore"):
            WANTED[columns] = Reference(built).logits(EXTREME_IDS)
    return WANTED[columns]


def scalar_rows(columns: str, kv_type: str, built: Built) -> NDArray[np.float32]:
    if (columns, kv_type) not in SCALAR:
        SCALAR[columns, kv_type] = computed(built, EXTREME_IDS, kv_type=kv_type, kernels="scalar")
    return SCALAR[columns, kv_type]


@pytest.mark.parametrize(
    ("columns", "bound"),
    [
        ({}, 2e-4),
        ({"value": {5: 1e6}}, 2e-4),  # one position is all that counts
        ({"value": dict.fromkeys(range(64), 1e18)}, 2e-4),
        ({"value": dict.fromkeys(range(64), 1e-42)}, 2e-4),
        ({"value": dict.fromkeys(range(64), 1e-30)}, 2e-4),
        ({"key": {5: 1e-42, 6: 1e-38}}, 2e-4),
        ({"key": dict.fromkeys(range(64), 1e3)}, 2e-3),
        ({"query": {5: 0.0, 6: 1e-42}}, 2e-4),
        ({"value": {5: 1e4, 6: 1e-4}, "key": {5: -20.0}}, 2e-4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv_type", _ALL_TYPES)
def test_extreme_keys_and_values(
    columns: dict[str, dict[int, float]], bound: float, kv_type: str, kernels: str
) -> None:
    built, ids = with_tokens(ONE_LAYER, columns), EXTREME_IDS
    rows = computed(built, ids, kv_type=kv_type, kernels=kernels)
    assert np.isfinite(rows).all()
    assert relative_error(rows, wanted_of(repr(columns), built)) < bound * _COARSENESS[kv_type]
    np.testing.assert_array_equal(rows, scalar_rows(repr(columns), kv_type, built))


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("matrix", ["key", "value", "query"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("kv_type", _ALL_TYPES)
def test_what_is_no_number_touches_those_alone_who_see_it(
    matrix: str, number: float, kv_type: str, kernels: str
) -> None:
    """Token 20 stands at one position, in the second of three pages."""
    tiny = Tiny(num_layers=1, is_tied=False, num_heads=6, num_kv_heads=2, head_size=64, windows=(20,))
    built = with_tokens(tiny, {matrix: {20: number}})
    at = 40
    ids, others = [*IDS[:at], 20, *IDS[at + 1 :]], [*IDS[:at], 3, *IDS[at + 1 :]]
    with np.errstate(invalid="ignore"):
        rows = computed(built, ids, kv_type=kv_type, kernels=kernels)
    wanted = computed(built, others, kv_type=kv_type, kernels=kernels)
    touched = np.arange(len(ids)) - at
    touched = touched == 0 if matrix == "query" else (touched >= 0) & (touched < 20)
    np.testing.assert_array_equal(rows[~touched], wanted[~touched])
    assert not np.isfinite(rows[touched]).any()


@pytest.mark.parametrize("kv_type", TYPES)
def test_heads_too_large_for_sums_of_32_bits_are_refused(kv_type: str) -> None:
    built = build(Tiny(head_size=528, num_heads=2, num_kv_heads=1, num_layers=1))
    with pytest.raises(ValueError, match="too large for q16 and i16"):
        built.open(kv_type=kv_type)
    built.open(kv_type="f16").close()


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv_type", TYPES)
def test_the_largest_sums_fit_into_32_bits(kv_type: str, kernels: str) -> None:
    """All elements of queries, keys and values are as large as the largest, and all positions of a span alike."""
    tiny = Tiny(head_size=512, num_heads=1, num_kv_heads=1, num_layers=1, hidden_size=64, is_tied=False, rope_dim=2)
    built = build(tiny)
    for name in ("query", "key", "value"):
        _replace(built, f"0.{name}", built.description["layers"][0][name], np.full((512, 64), 0.01))
    ids = [5] * 512
    rows = computed(built, ids, kv_type=kv_type, kernels=kernels)
    assert relative_error(rows, Reference(built).logits(ids)) < 2e-4 * _COARSENESS[kv_type]
