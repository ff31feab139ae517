"""Several engines' signs of life as one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution
from stoker.engine.stats import AdapterLoad, EngineStats
from stoker.runtime.totals import Totals


def beat(**fields: Any) -> EngineStats:
    given: dict[str, Any] = {
        **dict.fromkeys(("num_steps", "num_running", "num_waiting", "kv_used", "kv_retained", "kv_capacity"), 0),
        "stalled_s": 0.0,
        **fields,
    }
    return EngineStats(**given)


def test_what_is_there_is_added_up_and_what_is_shared_is_not():
    one = beat(num_steps=5, num_running=1, kv_used=10, kv_capacity=100, stalled_s=2.0, num_paused=1)
    two = beat(num_steps=7, num_running=2, kv_used=30, kv_capacity=100, stalled_s=1.0)
    totals = Totals()
    totals.note(0, 0, one)
    totals.note(1, 0, two)
    merged = totals.merged([one, two])
    assert (merged.num_steps, merged.num_running, merged.num_paused) == (12, 3, 1)
    assert (merged.kv_used, merged.kv_capacity, merged.stalled_s) == (40, 200, 2.0)


def test_distributions_and_tiers():
    one = beat(
        step_s=Distribution((1, 2), 0.5),
        tiers=TierCounters(ram_bytes=3, ram_hit_tokens=32, disk_bytes=100, disk_hit_blocks=1),
    )
    two = beat(step_s=Distribution(), tiers=TierCounters(ram_bytes=4, disk_bytes=90, disk_hit_blocks=2))
    totals = Totals()
    totals.note(0, 0, one)
    totals.note(1, 0, two)
    merged = totals.merged([one, two])
    assert merged.step_s == Distribution((1, 2), 0.5)
    assert (merged.tiers.ram_bytes, merged.tiers.ram_hit_tokens) == (7, 32)
    assert (merged.tiers.disk_bytes, merged.tiers.disk_hit_blocks) == (100, 3), "all of them look at one folder"


def test_adapters_are_the_same_by_name():
    one = beat(adapters=[AdapterLoad("sql", 1, 2, 10)])
    two = beat(adapters=[AdapterLoad("fun", 0, 1, 3), AdapterLoad("sql", 1, 0, 5)])
    totals = Totals()
    totals.note(0, 0, one)
    totals.note(1, 0, two)
    assert sorted(totals.merged([one, two]).adapters, key=lambda load: load.name) == [
        AdapterLoad("fun", 0, 1, 3),
        AdapterLoad("sql", 2, 2, 15),
    ]
    assert totals.merged([two]).adapters == [AdapterLoad("fun", 0, 1, 3), AdapterLoad("sql", 1, 0, 15)]


def test_a_process_that_dies_takes_what_it_held_but_not_what_it_counted():
    totals, first = Totals(), beat(num_steps=5, kv_used=10, tiers=TierCounters(ram_bytes=7, ram_hit_tokens=32))
    totals.note(0, 0, first)
    totals.note(0, 0, None)
    assert totals.merged([]) == beat(num_steps=5, tiers=TierCounters(ram_hit_tokens=32))
    successor = beat(num_steps=2, kv_used=1)
    totals.note(0, 1, successor)
    merged = totals.merged([successor])
    assert (merged.num_steps, merged.kv_used, merged.tiers.ram_bytes) == (7, 1, 0)
    totals.leave(0)
    assert totals.merged([]).num_steps == 7


def test_the_pool_of_a_process_that_died_is_not_there_any_more():
    first, second = (
        beat(kv_sequences=3, kv_held_bytes=30, kv_capacity_bytes=100, state_held_bytes=7) for _ in range(2)
    )
    totals = Totals()
    totals.note(0, 0, first)
    totals.note(0, 1, second)
    merged = totals.merged([second])
    assert (merged.kv_sequences, merged.kv_held_bytes, merged.kv_capacity_bytes) == (3, 30, 100)
    assert merged.state_held_bytes == 7


EVENTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["beat", "silence", "restart", "leave"])), max_size=60)


@given(EVENTS)
def test_counters_never_shrink(events: list[tuple[int, str]]) -> None:
    totals = Totals()
    steps, incarnations, expected, seen = [0] * 3, [0] * 3, 0, 0
    for replica, event in events:
        if event == "beat":
            steps[replica] += 1
            expected += 1
            totals.note(replica, incarnations[replica], beat(num_steps=steps[replica]))
        elif event == "silence":
            totals.note(replica, incarnations[replica], None)
        else:
            steps[replica] = 0
            incarnations[replica] += 1
            if event == "leave":
                totals.leave(replica)
        found = totals.merged([]).num_steps
        assert found == expected >= seen
        seen = found
