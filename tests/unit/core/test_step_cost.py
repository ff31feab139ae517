from __future__ import annotations

import random

import pytest

from stoker.core.step_cost import StepCost, StepLoad


def true_seconds(load: StepLoad) -> float:
    return 0.008 + 0.0006 * load.num_streams + 0.0007 * load.num_prompt + 2e-7 * load.num_attended


def random_load(rng: random.Random) -> StepLoad:
    num_prompt = rng.choice([0, 0, 0, 16, 40, 64, 200])
    return StepLoad(rng.randint(0, 8), num_prompt, num_prompt * rng.randint(0, 6000))


def test_prices_are_learned_from_mixed_steps() -> None:
    rng, cost = random.Random(0), StepCost()
    for _ in range(600):
        load = random_load(rng)
        cost.observe(load, true_seconds(load) * rng.uniform(0.95, 1.05))
    for load in (StepLoad(4), StepLoad(4, 40, 40 * 500), StepLoad(0, 200, 200 * 5000)):
        assert cost.predict(load) == pytest.approx(true_seconds(load), rel=0.2)


def test_what_was_just_seen_is_predicted_well_whatever_was_seen_before() -> None:
    cost = StepCost()
    for _ in range(200):
        cost.observe(StepLoad(1), 0.008)
    slow = StepLoad(4, 40, 40 * 4000)
    for _ in range(12):
        cost.observe(slow, 0.2)
    assert cost.predict(slow) == pytest.approx(0.2, rel=0.1)


def test_looking_back_is_a_price_of_its_own() -> None:
    cost = StepCost()
    for _ in range(100):
        for position in (0, 2000, 4000, 6000):
            load = StepLoad(0, 100, 100 * position)
            cost.observe(load, true_seconds(load))
    assert 1.5e-7 < cost.attended_s < 2.5e-7
    assert cost.predict(StepLoad(0, 100, 100 * 8000)) == pytest.approx(0.238, rel=0.05)


def test_one_step_that_stood_still_is_forgotten_soon() -> None:
    cost = StepCost()
    load = StepLoad(4)
    for _ in range(20):
        cost.observe(load, 0.01)
    cost.observe(load, 100.0)
    assert cost.predict(load) < 0.02
    for _ in range(8):
        cost.observe(load, 0.01)
    assert cost.predict(load) == pytest.approx(0.01, rel=0.1)


def test_no_price_falls_to_nothing() -> None:
    cost = StepCost()
    for num_prompt in [16, 512] * 100:
        cost.observe(StepLoad(0, num_prompt), 0.01)
    assert cost.entry_s > 0
    assert cost.attended_s > 0
