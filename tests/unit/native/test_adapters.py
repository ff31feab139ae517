"""Adapters of the C++ decoder: each does what merging it does, to its own rows, and to them the same bits always."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.native.cases import beside_the_reference
from tests.unit.native.low_rank import LowRank, load, merged, random_adapter
from tests.unit.native.packed import aligned
from tests.unit.native.tiny import Built, Reference, Slots, Tiny, build, token_ids

FLOATS = build(Tiny(is_tied=False, embedding_scale=2.0, has_biases=True, logit_softcap=20.0))
MIXED = build(
    Tiny(
        types=("Q4_K", "Q8_0", "Q6_K", "Q4_1"), hidden_size=256, feed_forward_size=512, num_heads=8, num_kv_heads=2,
        head_size=32, rope_dim=32, has_post_norms=True, has_head_norms=True, is_tied=False,
    )
)  # fmt: skip
IDS = token_ids(60, MIXED.tiny)
WIDE = random_adapter(MIXED, 1, rank=40)
NARROW = random_adapter(MIXED, 2, rank=3, half=True)
PARTIAL = random_adapter(MIXED, 3, rank=8, only=(8, 11, 15))
SETS: list[Sequence[tuple[int, float]]] = [[(0, 1.0)], [(1, -0.5)], [(2, 1.0), (0, 0.25), (1, 1.0)], []]


def opened(**options: object) -> Slots:
    """With three adapters; slot i computes with the i-th of `SETS`."""
    decoder = MIXED.open(**{"kv_type": "f16"} | options)
    load(decoder, 0, WIDE)
    load(decoder, 1, NARROW, half=True)
    load(decoder, 2, PARTIAL)
    return Slots(decoder, MIXED, adapters=dict(enumerate(SETS)))


@pytest.fixture(scope="module")
def alone() -> list[NDArray[np.float32]]:
    """What each slot gives by itself, token after token, on the slowest kernels."""
    slots = opened(kernels="scalar")
    rows = [slots.all_logits(slot, IDS, [1]) for slot in range(4)]
    assert np.isfinite(rows).all()
    return rows


def error(rows: NDArray[np.float32], wanted: NDArray[np.float64]) -> float:
    return float(np.abs(rows - wanted).max() / wanted.std())


def reference(built: Built, ids: Sequence[int], *adapters: tuple[list[LowRank], float]) -> NDArray[np.float64]:
    found = merged(built, *adapters)
    model = Reference(found)
    y = model.hidden(ids) @ found.floats["head"].T
    cap = built.tiny.logit_softcap
    return cap * np.tanh(y / cap) if cap else y


@pytest.mark.parametrize("place", [*range(9), 15, None])
def test_each_matrix_can_be_changed(place: int | None) -> None:
    ids = token_ids(40, FLOATS.tiny)
    adapter = random_adapter(FLOATS, 7, rank=5, only=() if place is None else (place,))
    decoder = FLOATS.open()
    load(decoder, 3, adapter)
    rows = Slots(decoder, FLOATS, adapters={0: [(3, 1.5)]}).all_logits(0, ids)
    assert error(rows, reference(FLOATS, ids, (adapter, 1.5))) < 2e-5
    assert error(rows, reference(FLOATS, ids)) > 1e-2, "an adapter without effect would prove nothing"


def test_several_add_up_and_a_tied_head_stays_as_it_is() -> None:
    built = build(Tiny())
    ids = token_ids(40, built.tiny)
    decoder = built.open()
    adapters = [random_adapter(built, seed, rank=1 + 8 * seed) for seed in range(3)]
    for number, adapter in enumerate(adapters):
        load(decoder, number, adapter)
    slots = Slots(decoder, built, adapters={0: [(number, 0.5) for number in range(3)]})
    wanted = reference(built, ids, *((adapter, 0.5) for adapter in adapters))
    assert error(slots.all_logits(0, ids), wanted) < 2e-5


@pytest.mark.parametrize(("kernels", "sizes"), beside_the_reference(2, [[1], [3], [17, 16], [60]]))
def test_chunks_and_kernels(alone: list[NDArray[np.float32]], kernels: str, sizes: list[int]) -> None:
    slots = opened(kernels=kernels)
    for slot in range(4):
        np.testing.assert_array_equal(slots.all_logits(slot, IDS, sizes), alone[slot])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_of_a_step_have_each_their_own(alone: list[NDArray[np.float32]], threads: int) -> None:
    slots = opened(num_threads=threads)
    rng, at = np.random.default_rng(3), [0] * 4
    while min(at) < len(IDS):
        order = [int(slot) for slot in rng.permutation(4) if at[slot] < len(IDS)]
        sizes = [min(int(rng.choice([1, 1, 2, 12])), len(IDS) - at[slot]) for slot in order]
        wanted = [int(rng.integers(0, size + 1)) for size in sizes]
        chunks = [
            (slot, IDS[at[slot] : at[slot] + size], n) for slot, size, n in zip(order, sizes, wanted, strict=True)
        ]
        rows = slots.step(chunks)
        for slot, size, n in zip(order, sizes, wanted, strict=True):
            at[slot] += size
            np.testing.assert_array_equal(rows[:n], alone[slot][at[slot] - n : at[slot]])
            rows = rows[n:]


def test_without_adapters_nothing_changes(alone: list[NDArray[np.float32]]) -> None:
    plain = Slots(MIXED.open(kv_type="f16"), MIXED)
    np.testing.assert_array_equal(plain.all_logits(0, IDS), alone[3])


def test_what_was_unloaded_is_gone_and_its_number_can_be_used_again(alone: list[NDArray[np.float32]]) -> None:
    slots = opened()
    slots.decoder.unload_adapter(1)
    with pytest.raises(ValueError, match="no such adapter"):
        slots.all_logits(1, IDS)
    np.testing.assert_array_equal(slots.all_logits(0, IDS), alone[0])
    load(slots.decoder, 1, NARROW, half=True)
    np.testing.assert_array_equal(slots.all_logits(1, IDS), alone[1])


@pytest.mark.parametrize("uses", [[(1, 0)], [(-1, 0)], [(0, 9)]])
def test_uses_that_cannot_be(uses: list[tuple[int, int]]) -> None:
    slots = opened()
    rows = np.array([(0, 0, 1, 1)], np.int32)
    logits = np.empty((1, MIXED.tiny.vocab_size), np.float32)
    arguments = (np.zeros(1, np.int32), rows, slots.tables, logits)
    with pytest.raises(ValueError, match="adapter"):
        slots.decoder.forward(*arguments, adapters=np.array(uses, np.int32), scales=np.ones(1, np.float32))
    with pytest.raises(ValueError, match="scale"):
        slots.decoder.forward(*arguments, adapters=np.array(uses, np.int32))


@pytest.mark.parametrize(
    "change",
    [
        (-1, 8, False, 1.0, 0, 0), (16, 8, False, 1.0, 0, 0), (2, 0, False, 1.0, 0, 0), (2, 4, False, 1.0, 0, 0),
        (2, 1 << 24, False, 1.0, 0, 0), (2, -8, False, 1.0, 0, 0), (2, 8, False, 1.0, 32, 0),
        (2, 8, False, 1.0, -64, 0),
        (2, 8, False, 1.0, 0, 1 << 40), (2, 8, False, 1.0, 0, 64), (0, 8, True, 1.0, 0, 0),
    ],
)  # fmt: skip
def test_changes_that_cannot_be(change: tuple[object, ...]) -> None:
    decoder = FLOATS.open()
    with pytest.raises(ValueError, match=r"change|tensor"):
        decoder.load_adapter(0, aligned(64 * 8 * 4), [change])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="incompatible"):
        decoder.load_adapter(0, aligned(64 * 8 * 4), [change[:-1]])  # type: ignore[list-item]
