"""Encoders: positions that see ahead, norms behind what is added, tables of positions, slopes; and that bits stay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.brief import every, mostly_slow
from tests.unit.native.tiny import Reference, Tiny, build, embedded, token_ids

BERT: dict[str, Any] = {
    "norm": "layer_biased", "is_encoder": True, "has_positions": True, "has_biases": True, "rope_dim": 0,
    "activation": "gelu_alone", "num_kv_heads": 4,
}  # fmt: skip
SLOPES: dict[str, Any] = {**BERT, "activation": "gelu", "has_positions": False, "has_slopes": True}
VARIANTS = {
    "bert": Tiny(**BERT),
    "rotated, with gates": Tiny(is_encoder=True, norm="layer", rope_dim=16),
    "windows": Tiny(is_encoder=True, activation="gelu", windows=(24, 0), has_head_norms=True, has_post_norms=True),
    "slopes": Tiny(**SLOPES),
    "a soft cap": Tiny(**BERT, attention_softcap=2.0, embedding_scale=4.0),
    "experts": Tiny(is_encoder=True, num_experts=8, num_kv_heads=4),
}
KV_TYPES = {"f32": 1e-5, "f16": 2e-3, "q8": 2e-2, "q4": 0.2, "q16": 2e-4, "i16": 4e-4}


def relative_error(rows: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(rows - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", VARIANTS)
def test_hidden_states_are_those_of_the_reference(name: str) -> None:
    built = build(VARIANTS[name])
    texts = [token_ids(count, built.tiny, seed=count) for count in (1, 5, 33, 70)]
    for text, rows in zip(texts, embedded(built, texts), strict=True):
        assert relative_error(rows, Reference(built).hidden(text)) < 1e-5


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("name", ["bert", "windows", "slopes"])
def test_types_of_keys_and_values(name: str, kv_type: str) -> None:
    built = build(VARIANTS[name])
    text = token_ids(150, built.tiny)
    (rows,) = embedded(built, [text], kv_type=kv_type)
    assert relative_error(rows, Reference(built).hidden(text)) < KV_TYPES[kv_type]


@cache
def long_reference(name: str, count: int) -> NDArray[np.float64]:
    """Shared by all types of keys and values."""
    built = build(VARIANTS[name])
    return Reference(built).hidden(token_ids(count, built.tiny))


@pytest.mark.parametrize("kv_type", ["f32", "i16", "q16"])
@pytest.mark.parametrize("count", mostly_slow([31, 32, 33, 511, 512, 513, 1100], [31, 33, 513]))
@pytest.mark.parametrize("name", ["bert", "windows"])
def test_borders_of_pages_spans_and_windows(name: str, count: int, kv_type: str) -> None:
    built = build(VARIANTS[name])
    text = token_ids(count, built.tiny)
    (rows,) = embedded(built, [text], kv_type=kv_type, num_threads=3)
    wanted = long_reference(name, count)
    assert relative_error(rows, wanted) < KV_TYPES[kv_type]
    for at in {0, 11, 12, 31, count // 2, count - 1} & set(range(count)):
        assert relative_error(rows[at], wanted[at]) < 5 * KV_TYPES[kv_type], at


@pytest.mark.parametrize("window", [1, 2, 7, 64, 512, 1024])
def test_windows_reach_to_both_sides(window: int) -> None:
    built = build(Tiny(is_encoder=True, windows=(window,), num_layers=1))
    text = token_ids(700, built.tiny)
    (rows,) = embedded(built, [text])
    wanted = Reference(built).hidden(text)
    assert relative_error(rows, wanted) < 1e-5
    for at in (0, 1, 255, 256, 257, 511, 512, 699):
        assert relative_error(rows[at], wanted[at]) < 2e-5, at


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8", "q4", "q16", "i16"])
@pytest.mark.parametrize("types", every(2, [("F32",), ("F16", "Q8_0"), ("Q4_K", "Q8_0", "Q6_K")]))
def test_bits_do_not_depend_on_company_nor_on_threads(types: Sequence[str], kv_type: str) -> None:
    """Texts of few and of many rows, alone, together, in any order."""
    sizes: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 256, "head_size": 32, "num_heads": 8}
    given: dict[str, Any] = {**BERT, **sizes, "num_kv_heads": 8}
    built = build(Tiny(**given, types=types))
    texts = [token_ids(count, built.tiny, seed=count) for count in (3, 600, 16, 17, 100, 1)]
    alone = [embedded(built, [text], kv_type=kv_type)[0] for text in texts]
    for num_threads, order in ((1, (0, 1, 2, 3, 4, 5)), (4, (5, 3, 1, 0, 2, 4)), (13, (1, 4))):
        found = embedded(built, [texts[i] for i in order], kv_type=kv_type, num_threads=num_threads)
        for i, rows in zip(order, found, strict=True):
            np.testing.assert_array_equal(rows, alone[i])


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kv_type", ["f32", "q8", "q4", "q16", "i16"])
def test_bits_are_the_same_with_all_kernels(name: str, kv_type: str) -> None:
    built = build(VARIANTS[name])
    texts = [token_ids(count, built.tiny) for count in (5, 90)]
    first, *others = [embedded(built, texts, kv_type=kv_type, kernels=kernels) for kernels in _native.kernel_names()]
    for other in others:
        for rows, wanted in zip(other, first, strict=True):
            np.testing.assert_array_equal(rows, wanted)


def test_layers_take_turns_with_the_memory_of_keys_and_values() -> None:
    sizes = [build(Tiny(**BERT, num_layers=count)).open().page_bytes for count in (1, 4)]
    assert sizes[0] == sizes[1]


def test_a_sequence_comes_whole() -> None:
    built = build(VARIANTS["bert"])
    decoder = built.open()
    tables = np.arange(8, dtype=np.int32).reshape(1, 8)
    hidden, logits = np.empty((3, 64), np.float32), np.empty((0, 50), np.float32)
    with pytest.raises(ValueError, match="does not come whole"):
        decoder.forward(np.zeros(3, np.int32), np.array([[0, 5, 3, 0]], np.int32), tables, logits, hidden)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_embedded_positions": 1 << 24}, "table too large"),
        ({"num_embedded_positions": -1}, "negative"),
        ({"distance_slopes": np.ones(3, np.float32)}, "no slope"),
        ({"positions": 1 << 40}, "outside of the memory"),
        ({"norm": "layered"}, "not known"),
    ],
)
def test_descriptions_that_lie_are_refused(changes: dict[str, Any], message: str) -> None:
    built = build(Tiny(**BERT, hidden_size=256))
    built.description.update(changes)
    with pytest.raises(ValueError, match=message):
        built.open()


def test_no_position_beyond_the_table() -> None:
    built = build(Tiny(**BERT))
    built.description["num_embedded_positions"] = 40
    assert len(embedded(built, [token_ids(40, built.tiny)])[0]) == 40
    with pytest.raises(ValueError, match="beyond the last position"):
        embedded(built, [token_ids(41, built.tiny)])
