"""A sequence's logits are the same to the bit, whatever is computed beside it, in which pieces, by whom and on what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from tests.unit.native.cases import beside_the_reference
from tests.unit.native.tiny import Slots, Tiny, build, token_ids

MIXED = Tiny(
    types=("Q4_K", "Q8_0", "Q6_K", "Q4_1"), hidden_size=256, feed_forward_size=512, num_heads=8, num_kv_heads=2,
    head_size=32, rope_dim=32, windows=(70, 0), attention_softcap=30.0, has_post_norms=True, has_head_norms=True,
)  # fmt: skip
BUILT = build(MIXED)
IDS = token_ids(100, MIXED)
KV_TYPES = ("f16", "q8", "q4", "q16", "i16")


def rows_with(sizes: Sequence[int], **options: object) -> NDArray[np.float32]:
    decoder = BUILT.open(**{"kv_type": "f16"} | options)
    try:
        return Slots(decoder, BUILT).all_logits(0, IDS, sizes)
    finally:
        decoder.close()


@pytest.fixture(scope="module", params=KV_TYPES)
def reference(request: pytest.FixtureRequest) -> tuple[str, NDArray[np.float32]]:
    rows = rows_with([1], kernels="scalar", kv_type=request.param)
    assert np.isfinite(rows).all()
    return request.param, rows


@pytest.mark.parametrize(("kernels", "sizes"), beside_the_reference(3, [[1], [2], [13], [3, 5], [64], [100], [16, 17]]))
def test_chunks_and_kernels(reference: tuple[str, NDArray[np.float32]], kernels: str, sizes: list[int]) -> None:
    kv_type, wanted = reference
    np.testing.assert_array_equal(rows_with(sizes, kernels=kernels, kv_type=kv_type), wanted)


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("sizes", [[1], [4, 7], [60]])
def test_threads(reference: tuple[str, NDArray[np.float32]], threads: int, sizes: list[int]) -> None:
    kv_type, wanted = reference
    np.testing.assert_array_equal(rows_with(sizes, num_threads=threads, kv_type=kv_type), wanted)


@pytest.mark.parametrize("kv_type", ["f16", "q16", "i16"])
def test_batch_mates(kv_type: str) -> None:
    wanted = rows_with([100], kv_type=kv_type)
    decoder = BUILT.open(kv_type=kv_type, num_threads=2)
    slots = Slots(decoder, BUILT)
    rng, found, at = np.random.default_rng(9), list[NDArray[np.float32]](), 0
    while at < len(IDS):
        size = min(int(rng.choice([1, 1, 2, 9, 30])), len(IDS) - at)
        mates = [(slot, token_ids(int(rng.choice([1, 3, 20])), MIXED, seed=at + slot), 1) for slot in (1, 2, 3)]
        chunks = [*mates, (3, [], 0)][: int(rng.integers(0, 4))]
        place = int(rng.integers(0, len(chunks) + 1))
        chunks.insert(place, (0, IDS[at : at + size], size))
        rows = slots.step(chunks)
        found.append(rows[place : place + size])
        at += size
    np.testing.assert_array_equal(np.concatenate(found), wanted)


@pytest.mark.parametrize("kv_type", ["f16", "q16", "i16"])
@pytest.mark.parametrize("threads", [1, 4])
def test_spans_computed_apart_or_one_after_the_other(threads: int, kv_type: str) -> None:
    """Long pasts: with several threads and one row each span is a piece of work, with one thread it is not."""
    built = build(Tiny(num_kv_heads=1, num_heads=2, windows=(700, 0)))
    ids = token_ids(1800, built.tiny)
    whole = Slots(built.open(num_pages=240, kv_type=kv_type), built, pages_each=60).all_logits(0, ids)
    slots = Slots(built.open(num_pages=240, kv_type=kv_type, num_threads=threads), built, pages_each=60)
    rows = slots.all_logits(0, ids, [500, 10, 1, 1, 1, 1, 509, 1, 1, 1, 500, 1, 2, 3, 300])
    np.testing.assert_array_equal(rows, whole)


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("kv_type", ["f32", *KV_TYPES])
def test_what_lies_in_pages_behind_the_end_is_not_seen(kv_type: str, kernels: str) -> None:
    """Not even as 0 times not-a-number, which all bits set are as an element and as a scale."""
    wanted = rows_with([7], kv_type=kv_type)
    decoder = BUILT.open(kv_type=kv_type, kernels=kernels)
    for page in range(80):
        decoder.import_page(page, b"\xff" * decoder.page_bytes, 0, 32)
    np.testing.assert_array_equal(Slots(decoder, BUILT).all_logits(0, IDS, [7, 20]), wanted)


def test_a_later_token_that_is_not_a_number_does_not_reach_back() -> None:
    """Positions behind a row's own, in its chunk or in its page, and before its window, do not touch it."""
    tiny = Tiny(num_layers=1, windows=(9,))
    built = build(tiny)
    ids = [i % 40 for i in range(60)]
    wanted = Slots(built.open(), built).all_logits(0, ids, [5])
    offset, columns = built.description["embedding"][3], tiny.hidden_size
    broken = build(tiny)
    table = broken.memory[offset:].view(np.float32)
    table[(45 // 16) * 16 * columns + 45 % 16 : (45 // 16 + 1) * 16 * columns : 16] = np.nan
    ids_with_nan = [*ids[:40], 45, *ids[41:]]
    rows = Slots(broken.open(), broken).all_logits(0, ids_with_nan, [12])
    usable = [i for i in range(60) if not 40 <= i < 49]
    other = [i for i in range(50) if i != 45]
    np.testing.assert_array_equal(rows[usable][:, other], wanted[usable][:, other])
    assert np.isnan(rows[40:49]).all(axis=1).all()


def exported(decoder: _native.Decoder, page: int) -> bytearray:
    into = bytearray(decoder.page_bytes)
    decoder.export_page(page, into)
    return into


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8", "q4", "q16", "i16"])
def test_pages_are_copied_exported_and_taken_over_in_part(kv_type: str) -> None:
    built = build(Tiny(head_size=48))
    ids = token_ids(60, built.tiny)
    decoder = built.open(kv_type=kv_type)
    slots = Slots(decoder, built)
    wanted = slots.all_logits(0, ids, [50, 1])[50:]
    other = built.open(kv_type=kv_type)
    into = Slots(other, built)
    full, partial = (int(page) for page in slots.tables[0, :2])
    other.import_page(int(into.tables[1, 0]), exported(decoder, full), 0, 32)
    other.import_page(int(into.tables[3, 1]), b"\0" * other.page_bytes, 0, 32)
    other.import_page(int(into.tables[3, 1]), exported(decoder, partial), 0, 10)
    other.import_page(int(into.tables[3, 1]), exported(decoder, partial), 10, 18)
    other.copy_page(int(into.tables[3, 1]), int(into.tables[1, 1]))
    into.lengths[1] = 50
    rows = np.concatenate([into.step([(1, [token], 1)]) for token in ids[50:]])
    np.testing.assert_array_equal(rows, wanted)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8", "q4", "q16", "i16"])
def test_what_is_taken_over_in_part_leaves_the_other_positions_as_they_are(kv_type: str) -> None:
    """Each byte of a page belongs to one position."""
    decoder = build(Tiny(head_size=48)).open(kv_type=kv_type)
    zeros, ones, owners = b"\0" * decoder.page_bytes, b"\1" * decoder.page_bytes, np.zeros(decoder.page_bytes, int)
    for first, last in ((0, 1), (1, 3), (3, 10), (10, 12), (12, 31), (31, 32)):
        decoder.import_page(7, zeros, 0, 32)
        decoder.import_page(7, ones, first, last)
        changed = np.frombuffer(exported(decoder, 7), np.uint8)
        assert changed.sum() == decoder.page_bytes * (last - first) // 32
        owners += changed
    np.testing.assert_array_equal(owners, 1)


@pytest.mark.parametrize("types", [("F32",), ("TQ2_0", "Q8_0")])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mixers", [("attention",), ("none", "linear", "attention", "none", "linear", "none")])
def test_norms_within_and_layers_without_attention(mixers: Sequence[str], threads: int, types: Sequence[str]) -> None:
    """However a prompt is cut, by how many threads, and whichever rows are wanted."""
    tiny = Tiny(
        types=types, hidden_size=256, feed_forward_size=256, num_heads=4, head_size=64, mixers=mixers,
        num_layers=2 * len(mixers), has_sub_norms=True, has_scales=True, has_biases=True,
    )  # fmt: skip
    built = build(tiny)
    wanted = Slots(built.open(), built).all_logits(0, IDS)
    slots = Slots(built.open(num_threads=threads), built)
    for slot, sizes in enumerate([(1,), (2, 15, 16, 17, 50)]):
        np.testing.assert_array_equal(slots.all_logits(slot, IDS, sizes), wanted)
    rows = slots.step([(2, IDS[:60], 2), (3, IDS[:70], 0)])
    np.testing.assert_array_equal(rows, wanted[58:60])
    np.testing.assert_array_equal(slots.step([(3, IDS[70:], 4)]), wanted[96:])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("wanted_rows", [0, 1, 4, 7])
def test_rows_of_logits_not_asked_for_are_left_out_and_change_nothing(threads: int, wanted_rows: int) -> None:
    """In the last layer such rows are not computed; their keys and values are."""
    wanted = rows_with([100])
    slots = Slots(BUILT.open(kv_type="f16", num_threads=threads), BUILT)
    rows = slots.step([(1, IDS[:30], 1), (0, IDS[:80], wanted_rows), (2, IDS[:9], 0)])
    np.testing.assert_array_equal(rows, np.concatenate([wanted[29:30], wanted[80 - wanted_rows : 80]]))
    np.testing.assert_array_equal(slots.step([(2, IDS[9:10], 1), (0, IDS[80:], 20)]), wanted[[9, *range(80, 100)]])
