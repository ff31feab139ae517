"""The decoder's numbers against NumPy in float64: every feature, around every border of pages, spans and windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.native.tiny import Built, Reference, Slots, Tiny, build, token_ids

WITHOUT_ATTENTION = ("none", "linear", "attention", "none", "linear", "none")
VARIANTS = {
    "plain": Tiny(),
    "everything": Tiny(
        activation="gelu_tanh", attention_softcap=2.0, logit_softcap=3.0, embedding_scale=8.0, has_biases=True,
        has_head_norms=True, has_post_norms=True, is_tied=False, windows=(7, 0), pairs="adjacent", rope_dim=8,
    ),
    "one head": Tiny(num_heads=2, num_kv_heads=1, head_size=80, rope_dim=80, hidden_size=96),
    "many query heads": Tiny(num_heads=14, num_kv_heads=1, head_size=16),
    "as many key heads": Tiny(num_heads=4, num_kv_heads=4, head_size=48, rope_dim=24),
    "odd vocabulary": Tiny(vocab_size=37, logit_softcap=1.5, is_tied=False),
    "several blocks of logits": Tiny(vocab_size=777, logit_softcap=1.5),
    "gated attention": Tiny(has_gates=True),
    "short convolutions": Tiny(mixers=("short_conv", "attention")),
    "delta nets": Tiny(mixers=("delta_net", "attention", "delta_net"), num_layers=3, has_gates=True, has_biases=True),
    "squared ReLU": Tiny(activation="relu_squared", has_biases=True),
    "xIELU": Tiny(activation="xielu", has_biases=True),
    "GELU alone": Tiny(activation="gelu_tanh_alone", norm="layer_biased", has_biases=True),
    "a bias of norms": Tiny(norm="rms_biased", has_post_norms=True),
    "a bias of the head": Tiny(vocab_size=37, is_tied=False, has_head_bias=True),
    "mixers side by side": Tiny(mixers=("attention", "mamba2"), num_layers=4, are_beside=True),
    "norms within": Tiny(has_sub_norms=True, has_scales=True, has_biases=True, vocab_size=37),
    "layers without attention": Tiny(mixers=WITHOUT_ATTENTION, num_layers=6, has_post_norms=True, has_biases=True),
    "chunks": Tiny(windows=(33, 0), has_chunks=True, rope_dim=8),
    "KDA": Tiny(mixers=("kda", "attention", "kda"), num_layers=3, has_biases=True),
    "Mamba 1": Tiny(mixers=("mamba", "attention", "mamba"), num_layers=3, has_biases=True),
    "no attention": Tiny(mixers=("mamba", "none", "mamba2"), num_layers=3),
    "Mamba 2": Tiny(mixers=("mamba2", "attention", "mamba2"), num_layers=3),
}  # fmt: skip


def relative_error(rows: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(rows - wanted) / np.linalg.norm(wanted))


def computed(built: Built, ids: Sequence[int], **options: object) -> NDArray[np.float32]:
    decoder = built.open(**options)
    try:
        return Slots(decoder, built).all_logits(0, ids, [1, 2, 40, 3])
    finally:
        decoder.close()


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_reference(name: str) -> None:
    built = build(VARIANTS[name])
    ids = token_ids(70, built.tiny)
    assert relative_error(computed(built, ids), Reference(built).logits(ids)) < 5e-6


@pytest.mark.parametrize("window", [0, 1, 32, 33, 511, 512, 513])
def test_windows_and_borders_of_pages_and_spans(window: int) -> None:
    built = build(Tiny(windows=(window, 0), num_kv_heads=1, num_layers=2))
    ids = token_ids(600, built.tiny)
    decoder = built.open()
    rows = Slots(decoder, built).all_logits(0, ids, [33, 479, 1, 1, 90])
    wanted = Reference(built).logits(ids)
    assert relative_error(rows, wanted) < 5e-6
    for at in (0, 31, 32, 33, 510, 511, 512, 513, 544, 599):
        assert relative_error(rows[at], wanted[at]) < 1e-5, at


def test_scores_that_differ_by_more_than_an_exponential_can_hold() -> None:
    """In one span and between spans, up and down: e^88 is the largest that a float holds."""
    built = build(Tiny(sharpness=300, num_layers=1, num_heads=2, num_kv_heads=1))
    ids = token_ids(1100, built.tiny)
    rows = Slots(built.open(num_pages=160), built, pages_each=40).all_logits(0, ids, [550])
    assert relative_error(rows, Reference(built).logits(ids)) < 2e-3


@pytest.mark.parametrize(
    ("kv_type", "bound"), [("f32", 5e-6), ("f16", 2e-3), ("q8", 2e-2), ("q4", 0.2), ("q16", 2e-4), ("i16", 4e-4)]
)
@pytest.mark.parametrize("head_size", [16, 64])
def test_types_of_keys_and_values(kv_type: str, bound: float, head_size: int) -> None:
    built = build(Tiny(head_size=head_size))
    ids = token_ids(100, built.tiny)
    assert relative_error(computed(built, ids, kv_type=kv_type), Reference(built).logits(ids)) < bound


def test_hidden_states_are_those_behind_the_last_norm() -> None:
    built = build(VARIANTS["everything"])
    ids = token_ids(9, built.tiny)
    decoder = built.open()
    for count in (9, 3):
        hidden = np.empty((count, built.tiny.hidden_size), np.float32)
        chunks = np.array([[0, 0, count, 0]], np.int32)
        logits = np.empty((0, built.tiny.vocab_size), np.float32)
        tables = np.arange(4, dtype=np.int32).reshape(1, 4)
        decoder.forward(np.array(ids[:count], np.int32), chunks, tables, logits, hidden)
        assert relative_error(hidden, Reference(built).hidden(ids[:count])) < 5e-6


def test_only_the_rows_asked_for_come_out() -> None:
    built = build(Tiny())
    decoder = built.open()
    a, b = token_ids(20, built.tiny), token_ids(12, built.tiny, seed=6)
    rows = Slots(decoder, built).step([(0, a, 0), (1, b, 3), (2, a[:5], 1)])
    assert relative_error(rows[:3], Reference(built).logits(b)[-3:]) < 5e-6
    assert relative_error(rows[3], Reference(built).logits(a[:5])[-1]) < 5e-6


@pytest.mark.parametrize("types", [("Q8_0",), ("Q4_0", "F16"), ("BF16",)])
def test_quantised_matrices(types: Sequence[str]) -> None:
    """Eight-bit activations: only the size of the error is checked here; the products have tests of their own."""
    built = build(Tiny(types=types, has_post_norms=True, has_head_norms=True, num_layers=1))
    ids = token_ids(40, built.tiny)
    assert relative_error(computed(built, ids), Reference(built).logits(ids)) < 0.05
