"""Slots with states: what is exported is what goes on, to the bit; what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker import _native
from tests.unit.native.golden import MODELS
from tests.unit.native.tiny import Built, Slots, build, token_ids

BUILT, OTHER = build(MODELS["states"]), build(MODELS["scans"])
IDS = token_ids(80, BUILT.tiny)


@pytest.fixture(params=[BUILT, OTHER], ids=["states", "scans"])
def built(request: pytest.FixtureRequest) -> Built:
    return request.param


@pytest.mark.parametrize("kernels", _native.kernel_names())
def test_chunks_company_and_threads_do_not_show(built: Built, kernels: str) -> None:
    wanted = Slots(built.open(kernels="scalar"), built).all_logits(0, IDS, [1])
    slots = Slots(built.open(kernels=kernels, num_threads=3), built)
    found, at = [slots.step([(1, IDS[:7], 0), (2, IDS[:17], 17)])], 17
    for size in (1, 1, 33, 2, 26):
        rows = slots.step([(3, IDS[:size], 1), (2, IDS[at : at + size], size), (1, IDS[:1], 0)])
        found.append(rows[1:])
        at += size
    assert at == len(IDS)
    np.testing.assert_array_equal(np.concatenate(found), wanted)


def test_a_state_goes_on_in_another_slot_and_decoder(built: Built) -> None:
    first, second = (Slots(built.open(), built) for _ in range(2))
    wanted = first.step([(0, IDS[:40], 0), (1, IDS[:3], 1)])
    state = bytearray(first.decoder.state_bytes)
    first.decoder.export_state(0, state)
    wanted = first.step([(0, IDS[40:50], 10)])
    for index in range(2):
        page = bytearray(first.decoder.page_bytes)
        first.decoder.export_page(int(first.tables[0, index]), page)
        second.decoder.import_page(int(second.tables[2, index]), page, 0, 32)
    second.decoder.import_state(2, state, 40)
    second.lengths[2] = 40
    np.testing.assert_array_equal(second.step([(2, IDS[40:50], 10)]), wanted)


def test_a_sequence_goes_on_where_its_state_ends_or_begins_anew(built: Built) -> None:
    slots = Slots(built.open(), built)
    wanted = slots.all_logits(0, IDS[:10])
    for wrong in (9, 11):
        slots.lengths[0] = wrong
        with pytest.raises(ValueError, match="does not begin where the state"):
            slots.step([(0, IDS[:2], 1)])
    with pytest.raises(ValueError, match="one state"):
        slots.step([(1, IDS[:2], 1), (1, IDS[:2], 1)])
    slots.lengths[0] = 0
    np.testing.assert_array_equal(slots.all_logits(0, IDS[:10]), wanted)


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_slot_goes_back_to_what_was_kept(built: Built, kept: int) -> None:
    """And on from there, as if what followed had never been."""
    slots = Slots(built.open(num_threads=2), built)
    wanted = slots.all_logits(0, IDS[:40])
    slots.step([(1, IDS[:20], 0)])
    slots.decoder.keep_states([(1, kept), (3, 1)])
    found = slots.step([(2, IDS[:3], 0), (1, [*IDS[20 : 20 + kept], 7, 8, 9], 3 + kept)])
    np.testing.assert_array_equal(found[:kept], wanted[20 : 20 + kept])
    slots.decoder.roll_back_state(1)
    slots.lengths[1] = 20 + kept
    rest = IDS[20 + kept : 40]
    np.testing.assert_array_equal(slots.step([(1, rest, len(rest))]), wanted[20 + kept :])
    for slot in (1, 2, 0):  # a slot of which nothing was kept, by the last pass
        with pytest.raises(ValueError, match="no state was kept"):
            slots.decoder.roll_back_state(slot)


def test_what_is_kept_is_forgotten_with_the_slot(built: Built) -> None:
    slots = Slots(built.open(), built)
    wanted = slots.all_logits(0, IDS[:10])
    slots.decoder.keep_states([(1, 0)])
    slots.step([(1, IDS[:5], 0)])
    slots.lengths[1] = 0
    np.testing.assert_array_equal(slots.all_logits(1, IDS[:10], [4]), wanted)


def test_states_that_do_not_exist_are_refused(built: Built) -> None:
    decoder = built.open(num_states=2)
    state = bytearray(decoder.state_bytes)
    for use in (
        lambda: decoder.export_state(2, state),
        lambda: decoder.export_state(-1, state),
        lambda: decoder.export_state(0, state[1:]),
        lambda: decoder.import_state(2, state, 1),
        lambda: decoder.import_state(0, state[1:], 1),
        lambda: decoder.import_state(0, state, 0),
        lambda: decoder.roll_back_state(2),
        lambda: decoder.roll_back_state(0),
    ):
        with pytest.raises(ValueError, match="state"):
            use()
    for rows in ([(2, 0)], [(-1, 0)], [(0, -1)]):
        with pytest.raises(ValueError, match="no such slot"):
            decoder.keep_states(rows)
    with pytest.raises(ValueError, match="no such slot"):
        Slots(decoder, built).step([(2, IDS[:2], 1)])


def changed(layer: int, of: Built = BUILT, **changes: Any) -> Built:
    layers = list(of.description["layers"])
    layers[layer] = {**layers[layer], "recurrence": layers[layer]["recurrence"] | changes}
    return Built(of.tiny, of.description | {"layers": layers}, of.floats, of.memory)


@pytest.mark.parametrize(
    "built",
    [
        changed(0, mixer="attention"),
        changed(0, taps=0),
        changed(0, taps=9),
        changed(0, convolution=-1),
        changed(0, convolution=1 << 40),
        changed(0, num_heads=5),
        changed(0, num_heads=0),
        changed(0, num_key_heads=3),
        changed(0, key_size=-32),
        changed(0, key_size=1 << 30),
        changed(0, value_size=40),
        changed(0, step_bias=-1),
        changed(0, decay_rate=-1),
        changed(0, norm=-1),
        changed(0, norm_size=16),
        changed(0, beta=None),
        changed(0, decay=None),
        changed(1, taps=0),
        changed(3, norm_size=100),
        changed(3, value_size=1 << 20),
        changed(3, num_key_heads=0),
        changed(0, OTHER, num_key_heads=2),
        changed(0, OTHER, decay=None),
        changed(0, OTHER, wide_decay=None),
        changed(0, OTHER, wide_gate=None),
        changed(0, OTHER, step_bias=-1),
        changed(0, OTHER, step_bias=1 << 40),
        changed(0, OTHER, key_size=1 << 30),
        changed(0, OTHER, num_heads=1 << 30),
        changed(1, OTHER, num_heads=1 << 20),
        changed(1, OTHER, num_heads=64),
        changed(1, OTHER, num_key_heads=2),
        changed(1, OTHER, value_size=2),
        changed(1, OTHER, key_size=8),
        changed(1, OTHER, key_size=48),
        changed(1, OTHER, key_size=0),
        changed(1, OTHER, low=None),
        changed(1, OTHER, wide_decay=None),
        changed(1, OTHER, key_norm=-1),
        changed(1, OTHER, skip=-1),
        changed(1, OTHER, decay_rate=-1),
        changed(1, OTHER, decay_rate=1 << 40),
    ],
)
def test_a_recurrence_that_contradicts_itself_is_refused(built: Built) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        built.open()
