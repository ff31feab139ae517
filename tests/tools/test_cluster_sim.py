"""The simulator of clusters: it loses no token, says the same again, and shows what routing is for."""

from __future__ import annotations

import pytest

from benchmarks.cluster_sim import POLICIES, Figures, Machine, Request, agents, simulate
from stoker.runtime.routing import Beginning


def played(policy: str, num_fronts: int = 1, num_replicas: int = 4, rate: float = 0.2) -> tuple[Figures, list[Request]]:
    requests = agents(conversations=40, turns=5, rate=rate, seed=1)
    return simulate(requests, policy, num_replicas=num_replicas, num_fronts=num_fronts), requests


@pytest.mark.parametrize("policy", POLICIES)
def test_every_token_is_computed_or_found(policy: str) -> None:
    found, requests = played(policy, num_fronts=2)
    assert all(request.done_s >= request.first_token_s > request.arrives_s for request in requests)
    prompts = sum(request.beginning.num_tokens - request.cached for request in requests)
    assert found.computed_tokens == prompts + sum(request.answer_tokens for request in requests)
    assert found == played(policy, num_fronts=2)[0], "the same again"


@pytest.mark.parametrize("num_fronts", [1, 2, 4])
def test_four_replicas_find_nearly_what_one_server_finds(num_fronts: int) -> None:
    one = played("stoker", num_replicas=1)[0].cached_part
    assert played("stoker", num_fronts)[0].cached_part >= 0.95 * one
    assert played("least work", num_fronts)[0].cached_part < 0.85 * one


@pytest.mark.parametrize("num_fronts", [1, 4])
def test_knowing_what_is_held_beats_knowing_what_was_sent_where_caches_are_small(num_fronts: int) -> None:
    found = {
        policy: simulate(
            agents(conversations=60, turns=5, rate=0.3, seed=1),
            policy,
            num_replicas=4,
            num_fronts=num_fronts,
            machine=Machine(cache_tokens=6000),
        ).cached_part
        for policy in ("stoker", "by sent text")
    }
    assert found["stoker"] > found["by sent text"], found


def test_fronts_that_do_not_hear_of_each_other_compute_more() -> None:
    assert played("each front alone", num_fronts=4)[0].cached_part < played("stoker", num_fronts=4)[0].cached_part - 0.1


def test_prefix_with_all_the_traffic_is_spread() -> None:
    keys = tuple(b"block %d" % number for number in range(20))
    requests = [Request(number * 0.05, Beginning(keys, 1300), 100, keys) for number in range(400)]
    found = simulate(requests, "stoker", num_replicas=4, num_fronts=2, machine=Machine(parallel=4))
    assert found.busiest_to_idlest <= 1.5
    assert found.cached_part > 0.9
