"""Who leaves, and when."""

import pytest

from stoker.runtime.eviction import Candidate, Lack, SwapBounds, Waiting, choose_victims, has_had_enough, leaves_at

BOUNDS = SwapBounds(wait_s=5, max_requests=10, linger_s=0.25)


def idle(key: str, num_bytes: int, used_at: float) -> Candidate:
    return Candidate(key, num_bytes, used_at, True)


def busy(key: str, num_bytes: int, used_at: float) -> Candidate:
    return Candidate(key, num_bytes, used_at, False)


@pytest.mark.parametrize(
    ("candidates", "num_bytes", "num_places", "chosen"),
    [
        ([], 0, 0, ""),
        ([], 1, 0, None),
        ([idle("a", 10, 1)], 11, 0, None),
        ([idle("a", 10, 2), idle("b", 10, 1)], 10, 0, "b"),
        ([idle("a", 10, 2), idle("b", 10, 1)], 11, 0, "ab"),
        ([idle("a", 5, 1), idle("b", 20, 2), idle("c", 20, 3)], 15, 0, "b"),
        ([busy("a", 10, 1), idle("b", 10, 9)], 10, 0, "b"),
        ([busy("a", 10, 1), idle("b", 5, 9)], 10, 0, "a"),
        ([busy("a", 10, 1), busy("b", 10, 9)], 10, 0, "a"),
        ([idle("a", 0, 2), idle("b", 0, 1)], 0, 1, "b"),
        ([idle("a", 10, 2), idle("b", 0, 1)], 10, 1, "a"),
    ],
)
def test_least_recently_used_that_frees_enough(
    candidates: list[Candidate], num_bytes: int, num_places: int, chosen: str | None
):
    victims = choose_victims(candidates, Lack(num_bytes, places=num_places))
    assert (None if victims is None else "".join(sorted(victim.key for victim in victims))) == chosen


def test_memory_of_devices_counts_for_itself():
    on_device = Candidate("a", 1, 9, True, device_bytes=50)
    in_ram = Candidate("b", 100, 1, True)
    assert choose_victims([on_device, in_ram], Lack(0, 50)) == (on_device,)
    assert choose_victims([on_device, in_ram], Lack(90, 0)) == (in_ram,)
    assert choose_victims([on_device, in_ram], Lack(90, 50)) == (in_ram, on_device)
    assert choose_victims([on_device, in_ram], Lack(0, 51)) is None


def test_bound_in_time_and_in_number():
    assert not has_had_enough(Waiting(since=100, num_requests=9), BOUNDS, now=104.9)
    assert has_had_enough(Waiting(since=100, num_requests=0), BOUNDS, now=105)
    assert has_had_enough(Waiting(since=100, num_requests=10), BOUNDS, now=100)


def test_idle_model_leaves_when_it_was_left_alone_for_a_moment_or_had_enough():
    waiting = Waiting(since=100, num_requests=0)
    assert leaves_at(idle("a", 1, 50), waiting, BOUNDS) < 100
    assert leaves_at(idle("a", 1, 103), waiting, BOUNDS) == 103.25
    assert leaves_at(idle("a", 1, 104.9), waiting, BOUNDS) == 105
    assert leaves_at(idle("a", 1, 101), Waiting(100, 10), BOUNDS) == 101
    assert leaves_at(busy("a", 1, 50), waiting, BOUNDS) == 105
