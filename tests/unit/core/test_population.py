"""Where a sequence is, and what becomes of its slot."""

from __future__ import annotations

import pytest

from stoker.backends.scripted import scripted_info
from stoker.core.kv_cache import NOTHING, KVCache
from stoker.core.population import Population
from stoker.core.sequence import FinishReason, Sequence
from stoker.core.tiering import Tiering
from stoker.core.token_budget import TokenBudget
from tests.harness import make_request

INFO = scripted_info()


@pytest.fixture
def kv() -> KVCache:
    return KVCache(INFO)


@pytest.fixture
def population(kv: KVCache) -> Population:
    budget = TokenBudget(max_tokens=64, target_step_s=0.2, idle_step_s=1.0)
    return Population(kv, Tiering(INFO, kv, budget, None))


def add(population: Population, name: str, arrival: int, priority: int = 0) -> Sequence:
    sequence = Sequence.begin(make_request(name, [1, 2, 3], priority=priority), arrival, INFO)
    population.add(sequence)
    return sequence


def counts(population: Population) -> tuple[int, int, int]:
    population.check_integrity()
    return population.num_waiting, population.num_running, population.num_paused


def test_a_sequence_is_in_one_place_at_a_time(population: Population, kv: KVCache) -> None:
    sequence = add(population, "a", 1)
    assert counts(population) == (1, 0, 0)
    population.start(sequence, NOTHING)
    assert counts(population) == (0, 1, 0)
    assert population.running == {sequence.slot: sequence}
    population.preempt(sequence)
    assert counts(population) == (1, 0, 0)
    population.start(sequence, NOTHING)
    population.pause(sequence)
    assert counts(population) == (0, 0, 1)
    assert not population.has_work
    population.resume("a")
    assert counts(population) == (1, 0, 0)
    population.end(sequence, FinishReason.CANCELLED)
    assert counts(population) == (0, 0, 0)
    assert population.find("a") is None
    assert population.ended("a") is sequence
    assert not kv.running_slots


def test_only_the_population_says_who_runs(population: Population) -> None:
    with pytest.raises(TypeError):
        population.running[0] = add(population, "a", 1)  # type: ignore[index]


def test_the_newest_of_the_lowest_priority_makes_way(population: Population) -> None:
    names = {"high": 1, "old": 0, "new": 0}
    running = {name: add(population, name, arrival, priority) for arrival, (name, priority) in enumerate(names.items())}
    for sequence in running.values():
        population.start(sequence, NOTHING)
    assert population.lowest() is running["new"]
    assert population.lowest(spared={running["new"].slot}) is running["old"]
    assert not population.make_way(running["new"], spared=())
    assert population.lowest_below(running["old"]) is None
    assert population.lowest_below(running["high"]) is running["new"]
    assert population.make_way(running["old"], spared=())
    assert running["new"].slot is None
    assert population.first_in_line is running["new"]
    assert population.num_preemptions == 1


def test_arrivals_and_departures_are_changes_and_starts_are_none(population: Population) -> None:
    one, two = add(population, "a", 1), add(population, "b", 2)
    seen = population.num_changes
    population.start(one, NOTHING)
    assert population.num_changes == seen
    population.pause(two)
    population.resume("b")
    population.end(one, FinishReason.STOP)
    assert population.num_changes == seen + 3
