"""Mixtures of experts: the reference's numbers, and the same bits in any company, in any pieces, with all kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.native.cases import beside_the_reference
from tests.unit.native.tiny import Built, Reference, Slots, Tiny, build, token_ids

COMMON: dict[str, Any] = {"num_experts": 12, "is_tied": False}
NUMBERS = {
    "softmax": Tiny(**COMMON),
    "sigmoid": Tiny(**COMMON, routing="sigmoid", has_post_norms=True),
    "softmax of the chosen": Tiny(
        **COMMON, routing="softmax_of_chosen", activation="swiglu_clamped", has_biases=True, has_sinks=True
    ),
    "one of many": Tiny(num_experts=60, used_experts=1, routing="sigmoid"),
    "weighted inputs": Tiny(**COMMON, routing="sigmoid_of_chosen", weighs_input=True),
    "large ones": Tiny(**COMMON, types=("F16", "F32"), expert_size=160, feed_forward_size=32),
}
BITS = {
    "blocks": Tiny(
        types=("Q4_K", "Q8_0", "Q6_K", "MXFP4"), hidden_size=256, feed_forward_size=256, num_heads=8, num_kv_heads=2,
        head_size=32, rope_dim=32, expert_size=256, has_biases=True, has_sinks=True, has_post_norms=True, **COMMON,
    ),
    "floats": Tiny(types=("F16", "F32"), has_biases=True, activation="swiglu_clamped", **COMMON),
}  # fmt: skip
LENGTH = 60


@pytest.fixture(scope="module", params=BITS)
def alone(request: pytest.FixtureRequest) -> tuple[Built, NDArray[np.float32]]:
    """Each row computed alone, with the plainest kernels."""
    built = build(BITS[request.param])
    return built, rows_of(built, [1], kernels="scalar")


def rows_of(built: Built, sizes: Sequence[int], **options: Any) -> NDArray[np.float32]:
    decoder = built.open(**options)
    try:
        return Slots(decoder, built).all_logits(0, token_ids(LENGTH, built.tiny), sizes)
    finally:
        decoder.close()


@pytest.mark.parametrize("name", NUMBERS)
def test_logits_are_those_of_the_reference(name: str) -> None:
    built = build(NUMBERS[name])
    wanted = Reference(built).logits(token_ids(LENGTH, built.tiny))
    found = rows_of(built, [1, 2, 40, 3])
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 5e-6


WITH_SINKS = Tiny(has_sinks=True, num_layers=1, num_heads=2, num_kv_heads=1, windows=(0,))


@cache
def _wanted_with_sinks() -> NDArray[np.float64]:
    """Shared by all types of keys."""
    built = build(WITH_SINKS)
    return Reference(built).logits(token_ids(1100, built.tiny))


@pytest.mark.parametrize(
    ("kv_type", "limit"), [("f32", 5e-6), ("f16", 2e-3), ("q8", 4e-2), ("q4", 0.3), ("q16", 1e-3), ("i16", 1e-3)]
)
@pytest.mark.parametrize("threads", [1, 4])
def test_sinks_weigh_the_same_with_every_type_of_keys(kv_type: str, limit: float, threads: int) -> None:
    """With long pasts, so that several threads compute spans apart."""
    built = build(WITH_SINKS)
    ids = token_ids(1100, built.tiny)
    decoder = built.open(kv_type=kv_type, num_threads=threads, num_pages=160)
    rows = Slots(decoder, built, pages_each=40).all_logits(0, ids, [300, 400, 399, 1])
    decoder.close()
    wanted = _wanted_with_sinks()
    for part in (slice(0, 3), slice(3, None)):
        assert np.linalg.norm((rows - wanted)[part]) / np.linalg.norm(wanted[part]) < limit


@pytest.mark.parametrize(("kernels", "sizes"), beside_the_reference(1, [[1], [3, 5], [16, 17], [60]]))
def test_chunks_and_kernels(alone: tuple[Built, NDArray[np.float32]], kernels: str, sizes: list[int]) -> None:
    np.testing.assert_array_equal(rows_of(alone[0], sizes, kernels=kernels), alone[1])


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("sizes", [[1], [16], [60]])
def test_threads(alone: tuple[Built, NDArray[np.float32]], threads: int, sizes: list[int]) -> None:
    np.testing.assert_array_equal(rows_of(alone[0], sizes, num_threads=threads), alone[1])


@pytest.mark.parametrize("num_mates", [1, 7, 14, 60])
def test_batch_mates(alone: tuple[Built, NDArray[np.float32]], num_mates: int) -> None:
    """A row at a time, beside others that its experts have as well; the last layer goes on with some of the rows."""
    built, wanted = alone
    decoder = built.open(num_threads=2)
    slots, found = Slots(decoder, built), list[NDArray[np.float32]]()
    for at, token_id in enumerate(token_ids(LENGTH, built.tiny)[:20]):
        mates = (1, token_ids(num_mates, built.tiny, seed=at), 1)
        chunks = [(0, [token_id], 1), mates] if at % 2 else [mates, (0, [token_id], 1)]
        found.append(slots.step(chunks)[1 - at % 2])
        slots.lengths[1] = 0
    decoder.close()
    np.testing.assert_array_equal(np.stack(found), wanted[:20])


@pytest.mark.parametrize(
    "changes",
    [
        {"used": 0}, {"used": 13}, {"count": -1, "used": 0}, {"count": 2000}, {"size": 48}, {"num_groups": 5},
        {"used_groups": 5}, {"used": 7}, {"routing": "dice"}, {"router": None}, {"down": None},
    ],
)  # fmt: skip
def test_experts_that_contradict_themselves_are_refused(changes: dict[str, Any]) -> None:
    built = build(Tiny(num_layers=1, **COMMON))
    layer = built.description["layers"][0]
    layer["experts"] = layer["experts"] | changes
    with pytest.raises(ValueError, match=r"\w"):
        built.open()
