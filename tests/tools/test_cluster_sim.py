"""The simulator of clusters: it loses no token, says the same again, and shows what routing is for."""

from __future__ import annotations

import cluster_plan
import pytest
from cluster_machines import Machine, Replica, Request
from cluster_sim import POLICIES, Figures, agents, simulate

from stoker.runtime.routing import Beginning
from tests.brief import mostly_slow


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


@pytest.mark.parametrize("num_fronts", mostly_slow([1, 2, 4], [1, 4]))
def test_four_replicas_find_nearly_what_one_server_finds(num_fronts: int) -> None:
    one = played("stoker", num_replicas=1)[0].cached_part
    assert played("stoker", num_fronts)[0].cached_part >= 0.95 * one
    assert played("by sent text", num_fronts)[0].cached_part >= 0.85 * one
    assert played("least work", num_fronts)[0].cached_part < 0.85 * one


@pytest.mark.parametrize("num_fronts", mostly_slow([1, 4], [4]))
def test_knowing_what_is_held_beats_knowing_what_was_sent_where_caches_are_small(num_fronts: int) -> None:
    found = {
        policy: sum(
            simulate(
                agents(conversations=60, turns=5, rate=0.3, seed=seed),
                policy,
                num_replicas=4,
                num_fronts=num_fronts,
                machine=Machine(cache_tokens=6000),
            ).cached_part
            for seed in range(3)
        )
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


def test_many_fronts_do_not_send_simultaneous_requests_to_the_same_idle_replica() -> None:
    prompts = [Beginning((b"prompt %d" % number,), 1200) for number in range(64)]
    requests = [Request(0.001 * number, prompt, 16) for number, prompt in enumerate(prompts)]
    found = simulate(requests, "stoker", num_replicas=256, num_fronts=32)
    num_met = 64 - len({request.replica for request in requests})
    assert num_met <= 8, "the number of replicas that got two requests while others were idle"
    assert found.computed_tokens == 64 * 1200 + 64 * 16


def test_beginning_that_two_requests_share_is_computed_once_though_they_come_together() -> None:
    keys = tuple(b"block %d" % number for number in range(8))
    requests = [Request(0.01 * number, Beginning((*keys, b"end %d" % number), 600), 16) for number in range(2)]
    simulate(requests, "stoker", num_replicas=1, num_fronts=1)
    assert [request.cached for request in requests] == [0, 512]


def test_front_with_more_tokens_than_it_can_pass_on_delays_them() -> None:
    slow = Machine(front_s_per_token=0.02, front_s_per_request=0.01)
    found = {
        num_fronts: simulate(
            agents(conversations=40, turns=3, rate=1.0, seed=1),
            "stoker",
            num_replicas=4,
            num_fronts=num_fronts,
            machine=slow,
        )
        for num_fronts in (1, 16)
    }
    free = simulate(agents(conversations=40, turns=3, rate=1.0, seed=1), "stoker", num_replicas=4, num_fronts=1)
    assert found[1].ttft_p95_s > 5 * free.ttft_p95_s
    assert found[1].ttft_p95_s > 3 * found[16].ttft_p95_s


def test_fewest_replicas_for_a_service_level() -> None:
    assert [cluster_plan.smallest(lambda count, least=least: count >= least) for least in (1, 2, 3, 37)] == [
        1,
        2,
        3,
        37,
    ]

    def ttft_s(count: int) -> float:
        return cluster_plan.played("stoker", count, 1, rate=1.0, seed=0, machine=Machine()).ttft_p95_s

    needed = cluster_plan.needed("stoker", 1.0, 2.0, 1, Machine())
    assert needed is not None
    assert ttft_s(needed) <= 2.0 < ttft_s(needed - 1)
    assert cluster_plan.needed("stoker", 0.1, 0.01, 1, Machine()) is None, "a prompt alone takes longer"


def test_step_computes_short_prompts_first_as_in_the_engine_and_a_token_of_each_answer() -> None:
    replica = Replica(Machine(chunk_tokens=100, prompt_tokens_per_s=100.0, step_s=0.5, step_per_answer_s=0.25))
    long, short = (Request(0.0, Beginning((), count), 2) for count in (130, 70))
    for request in (long, short):
        request.prompt_left, request.answer_left = request.beginning.num_tokens, request.answer_tokens
    replica.waiting.extend((long, short))
    assert replica.begin_step() == 1.0 + 0.5, "a hundred tokens of prompts, and the first token of one"
    assert replica.end_step() == [short]
    assert (long.prompt_left, short.prompt_left, short.answer_left) == (100, 0, 1)
    assert replica.begin_step() == 1.0 + 0.5 + 0.25
    assert replica.end_step() == [long, short]
    assert replica.ended == [short]


def test_front_counts_a_whole_prompt_until_its_first_token() -> None:
    replica = Replica(Machine(chunk_tokens=100))
    request = Request(0.0, Beginning((), 130), 20, answer_left=20)
    replica.waiting.append(request)
    assert request.work == 150
    replica.begin_step()
    replica.end_step()
    assert (request.prompt_left, request.work) == (30, 150)
    replica.begin_step()
    replica.end_step()
    request.first_token_s = 1.0
    assert request.work == 19
