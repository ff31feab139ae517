"""Lanes of adapters: one at a time, each in its turn, and none for longer than its turn."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import scripted_info
from stoker.core.adapter_rotation import TURN_S, TURN_STEPS, AdapterRotation
from stoker.core.batch import AdapterSet, Batch
from stoker.core.sequence import Sequence
from tests.harness import Loop, make_request

POET: AdapterSet = (("poet", 1.0),)
CLERK: AdapterSet = (("clerk", 0.5),)


def of(*sets: AdapterSet) -> list[Sequence]:
    return [Sequence(make_request(f"r{index}", [1], adapters=adapters)) for index, adapters in enumerate(sets)]


def test_a_backend_that_mixes_adapters_has_one_lane() -> None:
    rotation = AdapterRotation(scripted_info(mixes_adapters=True))
    sequences = of((), POET, CLERK)
    assert rotation.order(sequences) == [()]
    assert rotation.of((), sequences) == sequences


def test_lanes_take_rotation() -> None:
    rotation = AdapterRotation(scripted_info())
    sequences = of((), POET, CLERK)
    taken: list[AdapterSet] = []
    for _ in range(6 * TURN_STEPS):
        taken.append(rotation.order(sequences)[0])
        rotation.take(taken[-1])
    assert taken[::TURN_STEPS] == [(), POET, CLERK] * 2
    assert [rotation.lane_of(s) for s in rotation.of(POET, sequences)] == [POET]


def test_a_turn_ends_with_its_time() -> None:
    rotation = AdapterRotation(scripted_info())
    sequences = of((), POET)
    taken: list[AdapterSet] = []
    for step_s in [TURN_S, TURN_S / 2, TURN_S / 2, 3 * TURN_S, TURN_S / 4]:
        taken.append(rotation.order(sequences)[0])
        rotation.take(taken[-1])
        rotation.observe(step_s)
    assert taken == [(), POET, POET, (), POET]


def test_a_new_lane_overtakes_nobody() -> None:
    rotation = AdapterRotation(scripted_info())
    known = of((), POET)
    rotation.take(rotation.order(known)[0])
    assert rotation.order([*of(CLERK), *known])[-1] == CLERK


def test_a_lane_that_has_nothing_to_compute_keeps_its_place() -> None:
    rotation = AdapterRotation(scripted_info())
    sequences = of((), POET, CLERK)
    rotation.order(sequences)
    rotation.take(CLERK)
    assert rotation.order(sequences)[:2] in ([(), POET], [CLERK, ()])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_nobody_waits_for_more_than_one_turn_of_everybody_else(seed: int) -> None:
    """Lanes come and go; whoever has entries to compute gets a step within a bound."""
    rng = random.Random(seed)
    rotation = AdapterRotation(scripted_info())
    present: dict[int, int] = {}
    """Lane -> most steps that it may still wait."""
    for step in range(120):
        if rng.random() < 0.3:
            present.setdefault(rng.randrange(100), len(present) * TURN_STEPS + TURN_STEPS)
        if present and rng.random() < 0.1:
            del present[rng.choice(list(present))]
        order = rotation.order(of(*((("a", float(lane)),) for lane in present)))
        if not order:
            continue
        rotation.take(order[0])
        served = int(order[0][0][1])
        for lane in present:
            present[lane] -= 1
            assert present[lane] >= 0 or lane == served, f"lane {lane} starves at step {step}"
        present[served] = len(present) * TURN_STEPS


def test_streams_of_all_adapters_advance_together() -> None:
    """With more streams under one adapter than under another, each stream still gets its share of the steps."""
    loop = Loop(scripted_info(kv_tokens=4000), max_running=8)
    for index in range(8):
        adapters = POET if index < 6 else CLERK if index == 6 else ()
        loop.add(make_request(f"r{index}", [index, 1, 2], max_tokens=40, adapters=adapters))
    for _ in range(3 * 30):
        if loop.scheduler.has_work:
            loop.step()
        lengths = [len(tokens) for name, tokens in loop.tokens.items() if name not in loop.reasons]
        assert max(lengths, default=0) - min(lengths, default=0) <= TURN_STEPS + 1


@pytest.mark.parametrize("mixes", [True, False])
def test_a_step_mixes_adapters_where_the_backend_can(mixes: bool) -> None:
    batches: list[Batch] = []
    loop = Loop(scripted_info(mixes_adapters=mixes), before_forward=batches.append)
    for index, adapters in enumerate((POET, CLERK, ())):
        loop.add(make_request(f"r{index}", [1, 2, 3], max_tokens=4, adapters=adapters))
    loop.run()
    num_sets = {len({chunk.adapters for chunk in batch.chunks}) for batch in batches}
    assert max(num_sets) == (3 if mixes else 1)


def test_a_long_prompt_under_one_adapter_does_not_stop_the_streams_of_another() -> None:
    batches: list[Batch] = []
    loop = Loop(scripted_info(context_size=2000, kv_tokens=4000, max_batch_tokens=64), before_forward=batches.append)
    loop.add(make_request("stream", [1, 2, 3], max_tokens=30, adapters=POET))
    loop.step()
    loop.add(make_request("long", [7] * 1500, max_tokens=1, adapters=CLERK))
    before = len(batches)
    for _ in range(20):
        loop.step()
    lanes = [batch.chunks[0].adapters for batch in batches[before:]]
    assert lanes.count(POET) >= 20 // (2 * TURN_STEPS) * TURN_STEPS - TURN_STEPS
