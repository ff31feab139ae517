"""When a replica is added or given up: thresholds, hold, cool-down, and that it never swings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidInput
from stoker.runtime.autoscaling import Autoscaler, Demand
from stoker.runtime.replica_config import ReplicaConfig

PARALLEL = 2


def config(**changes: Any) -> ReplicaConfig:
    settings: dict[str, Any] = {"replicas": "1-4", "scale_hold_s": 20.0, "scale_cooldown_s": 300.0, **changes}
    return ReplicaConfig(**settings)


def load(count: int, num_open: int, **more: Any) -> Demand:
    return Demand(num_replicas=count, num_open=num_open, num_waiting=max(0, num_open - count * PARALLEL), **more)


def test_a_queue_must_be_long_for_a_while():
    scaler = Autoscaler(config())
    long, short = load(1, 7), load(1, 6)
    assert [scaler.decide(now, long) for now in (0, 10, 19)] == [0, 0, 0]
    assert scaler.decide(19.5, short) == 0
    assert [scaler.decide(now, long) for now in (20, 30, 39.9)] == [0, 0, 0]
    assert scaler.decide(40, long) == 1
    assert scaler.decide(41, load(2, 20)) == 0, "what holds must hold anew after a change"
    assert scaler.decide(61, load(2, 20)) == 1


def test_never_above_the_most_or_below_the_least():
    scaler = Autoscaler(config(scale_hold_s=0, scale_cooldown_s=0))
    assert scaler.decide(0, load(4, 1000)) == 0
    assert scaler.decide(1, load(1, 0)) == 0
    fixed = Autoscaler(config(replicas=3, scale_hold_s=0, scale_cooldown_s=0))
    assert fixed.decide(0, load(3, 1000)) == 0
    assert fixed.decide(0, load(3, 0)) == 0


def test_one_that_is_missing_is_replaced_at_once():
    scaler = Autoscaler(config(replicas="2-4"))
    assert scaler.decide(0, load(1, 0)) == 1


def test_after_a_failure_it_waits():
    scaler = Autoscaler(config(replicas="2-4"))
    scaler.note_failure(5)
    assert [scaler.decide(now, load(1, 0)) for now in (5, 24)] == [0, 0]
    assert scaler.decide(25, load(1, 0)) == 1


def test_while_one_is_loading_nothing_is_decided():
    scaler = Autoscaler(config())
    assert [scaler.decide(now, load(2, 99, is_loading=True)) for now in (0, 100, 999)] == [0, 0, 0]
    assert scaler.decide(1000, load(2, 99)) == 0
    assert scaler.decide(1020, load(2, 99)) == 1


def test_giving_up_waits_for_the_cool_down():
    scaler = Autoscaler(config())
    scaler.decide(0, load(1, 99))
    assert scaler.decide(20, load(1, 99)) == 1
    assert [scaler.decide(now, load(2, 1)) for now in (21, 100, 319)] == [0, 0, 0]
    assert scaler.decide(320, load(2, 1)) == -1
    assert scaler.decide(340, load(3, 3)) == 0
    assert scaler.decide(619, load(3, 3)) == 0
    assert scaler.decide(620, load(3, 3)) == -1


def test_as_many_as_would_be_left_with_two_each_stay():
    scaler = Autoscaler(config(scale_hold_s=0, scale_cooldown_s=0))
    assert scaler.decide(0, load(3, 4)) == 0
    assert scaler.decide(0, load(3, 3)) == -1


@given(
    num_open=st.integers(0, 200),
    start=st.integers(1, 8),
    hold_s=st.floats(0, 5),
    cooldown_s=st.floats(0, 5),
    down=st.floats(0, 5),
    gap=st.floats(0.01, 5),
)
def test_a_steady_load_is_settled_in_one_direction(
    num_open: int, start: int, hold_s: float, cooldown_s: float, down: float, gap: float
):
    settings = config(
        replicas="1-8",
        scale_hold_s=hold_s,
        scale_cooldown_s=cooldown_s,
        scale_down_open=down,
        scale_up_waiting=down + gap,
    )
    scaler, count, changes = Autoscaler(settings), start, list[int]()
    for now in range(120):
        change = scaler.decide(now, load(count, num_open))
        count += change
        changes += [change] if change else []
    assert len(set(changes)) <= 1, "it swings"
    assert 1 <= count <= 8
    assert scaler.decide(1e9, load(count, num_open)) == 0, "it has settled"


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 60)), max_size=80))
def test_whatever_comes_changes_keep_their_distance(events: list[tuple[float, int]]):
    settings = config()
    scaler, count, now, changed_at = Autoscaler(settings), 1, 0.0, float("-inf")
    for pause_s, num_open in events:
        now += pause_s
        change = scaler.decide(now, load(count, num_open))
        if change:
            assert now - changed_at >= (settings.scale_cooldown_s if change < 0 else settings.scale_hold_s)
            changed_at = now
        count += change
        assert 1 <= count <= 4


@pytest.mark.parametrize(
    ("text", "bounds"),
    [(1, (1, 1)), ("3", (3, 3)), ("1-4", (1, 4)), (" 2-2 ", (2, 2)), ("64", (64, 64)), ("0-2", (0, 2))],
)
def test_numbers_of_replicas(text: int | str, bounds: tuple[int, int]) -> None:
    found = ReplicaConfig(replicas=text)
    assert (found.min_replicas, found.max_replicas) == bounds


@pytest.mark.parametrize("text", [0, -1, "0-0", "4-1", "65", "1-65", "", "a", "1-", "-3", "1-2-3", "٣", "99999"])
def test_no_numbers_of_replicas(text: int | str) -> None:
    with pytest.raises(InvalidInput, match="a number from 1 to 64, or MIN-MAX") as caught:
        ReplicaConfig(replicas=text)
    assert caught.value.fields == {"parameter": "replicas"}


@pytest.mark.parametrize(
    "fields",
    [{"scale_hold_s": -1}, {"scale_cooldown_s": float("nan")}, {"scale_up_waiting": 2}, {"scale_down_open": 5}],
)
def test_thresholds_that_cannot_work(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ReplicaConfig(**fields)
