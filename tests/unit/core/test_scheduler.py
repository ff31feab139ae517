from __future__ import annotations

from itertools import pairwise

import pytest

from stoker.backends.scripted import scripted_info
from stoker.core.params import SamplingParams
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.core.sequence import CacheKey, FinishReason
from stoker.errors import InvalidInput, Overloaded
from tests.harness import ALL_TRAITS, Loop, answer_alone, make_request, prompt_step

SYSTEM = list(range(100))


def test_decodes_come_before_a_long_prompt() -> None:
    loop = Loop(scripted_info(max_batch_tokens=32))
    loop.add(make_request("stream", [1, 2, 3], 40))
    loop.step()
    loop.add(make_request("long", range(200), 1))
    while "long" in loop.scheduler._population._alive:
        before = len(loop.tokens["stream"])
        loop.step()
        assert len(loop.tokens["stream"]) == before + 1 or "stream" in loop.reasons


def test_a_prompt_is_taken_in_chunks_that_fit_the_batch() -> None:
    info = scripted_info(max_batch_tokens=32)
    scheduler = Scheduler(info, SchedulerConfig(max_running=2))
    scheduler.add(make_request("a", range(100)))
    sizes = list[int]()
    while (batch := scheduler.schedule()) is not None and not batch.num_rows:
        sizes.append(batch.num_tokens)
        scheduler.update(batch, [])
    assert sizes == [32, 32, 32]


def test_the_budget_follows_the_measured_speed() -> None:
    info = scripted_info(context_size=2000, kv_tokens=4000, max_batch_tokens=1024)
    scheduler = Scheduler(info, SchedulerConfig(max_running=2, target_step_s=0.1, idle_step_s=0.4))
    for _ in range(50):
        scheduler.observe(prompt_step(100), 0.1)  # one millisecond a token
    scheduler.add(make_request("a", range(1500)))
    batch = scheduler.schedule()
    assert batch is not None
    assert 390 <= batch.num_tokens <= 440


def test_requests_that_arrive_together_compute_a_common_prefix_once() -> None:
    loop = Loop(scripted_info(max_batch_tokens=64), max_running=8)
    for index in range(8):
        loop.add(make_request(f"r{index}", [*SYSTEM, index, 7], 1))
    loop.run()
    assert loop.backend.num_computed == len(SYSTEM) + 8 * 2
    cached = [loop.reasons[f"r{index}"] for index in range(8)]
    assert cached == [FinishReason.LENGTH] * 8


def test_a_prefix_is_shared_with_a_running_and_with_a_finished_sequence() -> None:
    loop = Loop()
    loop.add(make_request("first", [*SYSTEM, 1], 20))
    loop.step()
    loop.add(make_request("beside", [*SYSTEM, 2], 1))
    loop.step()
    assert loop.scheduler.sequence("beside").num_cached == len(SYSTEM)
    loop.run()
    loop.add(make_request("after", [*SYSTEM, 3], 1))
    loop.step()
    assert loop.scheduler.sequence("after").num_cached == len(SYSTEM)


def test_the_last_prompt_entry_is_always_computed_again() -> None:
    loop = Loop()
    for request_id in ("first", "again"):
        loop.add(make_request(request_id, SYSTEM, 1))
        loop.run()
    assert loop.tokens["first"] == loop.tokens["again"]


@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_a_conversation_goes_on_where_it_ended(traits: object) -> None:
    loop = Loop(scripted_info(traits=traits))  # type: ignore[arg-type]
    loop.add(make_request("turn1", SYSTEM, 5))
    loop.run()
    history = [*SYSTEM, *loop.tokens["turn1"], 9, 9]
    loop.add(make_request("turn2", history, 1))
    loop.step()
    # The last token of the first answer was sampled, but never computed.
    assert loop.scheduler.sequence("turn2").num_cached == len(SYSTEM) + 4


def test_cache_prompt_false_neither_reads_nor_leaves_anything() -> None:
    loop = Loop()
    loop.add(make_request("public", SYSTEM, 1))
    loop.run()
    held = loop.scheduler.kv.ledger.held
    loop.add(make_request("private", [*SYSTEM, 1, 2], 1, cache_prompt=False))
    loop.step()
    assert loop.scheduler.sequence("private").num_cached == 0
    assert loop.scheduler.kv.ledger.held == held


def test_least_recently_used_prefixes_leave_first() -> None:
    info = scripted_info(context_size=200, kv_tokens=200)
    loop = Loop(info)
    for start in (0, 50, 100):
        loop.add(make_request(f"p{start}", range(start, start + 50), 1))
        loop.run()
    loop.add(make_request("touch", [*range(50), 255], 1))
    loop.run()
    loop.add(make_request("big", range(150, 250), 1))
    loop.run()
    tree = loop.scheduler.kv.tree
    kept = {start: tree.match(list(range(start, start + 50)), CacheKey()).length for start in (0, 50, 100)}
    assert kept[0] == 50
    assert kept[50] < 50


def test_priority_displaces_a_running_sequence_which_then_resumes() -> None:
    loop = Loop(max_running=1)
    loop.add(make_request("low", [1, 2, 3], 10))
    loop.step()
    loop.add(make_request("high", [4, 5, 6], 3, priority=1))
    loop.step()
    assert loop.tokens["high"]
    low_tokens = list(loop.tokens["low"])
    loop.run()
    assert loop.tokens["low"][: len(low_tokens)] == low_tokens
    assert loop.num_preempted == 1


def test_a_neighbour_is_preempted_but_never_failed_when_the_pool_is_full() -> None:
    loop = Loop(scripted_info(context_size=100, kv_tokens=100), max_running=4)
    for index in range(4):
        loop.add(make_request(f"r{index}", [index * 10 + k for k in range(10)], 80))
    loop.run()
    assert loop.num_preempted > 0
    assert FinishReason.ERROR not in loop.reasons.values()


def test_clients_share_fairly() -> None:
    loop = Loop(max_running=1)
    for index in range(6):
        loop.add(make_request(f"greedy{index}", [index, 1, 2], 5, client_key="greedy"))
    loop.add(make_request("modest", [9, 9, 9], 5, client_key="modest"))
    loop.run()
    assert list(loop.reasons).index("modest") <= 1


def test_a_client_that_was_away_has_no_claim_saved_up() -> None:
    loop = Loop(max_running=1)
    loop.add(make_request("old", [5, 5], 1, client_key="away"))
    loop.run()
    endless = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for index in range(4):
        for offset, key in enumerate(("busy", "away")):
            prompt = (20 + 2 * index + offset, 1, 2)
            loop.add(Request(request_id=f"{key}{index}", prompt=prompt, sampling=endless, client_key=key))
    loop.run()
    order = [request_id[:4] for request_id in loop.reasons if request_id != "old"]
    assert all(first != second for first, second in pairwise(order))


def test_better_cached_requests_overtake_within_a_bound() -> None:
    loop = Loop(max_running=1)
    loop.add(make_request("seed", SYSTEM, 1))
    loop.run()
    loop.add(make_request("uncached", [200, 201, 202], 1))
    for index in range(30):
        loop.add(make_request(f"cached{index}", [*SYSTEM, index], 1))
    loop.run()
    assert 1 <= list(loop.reasons).index("uncached") <= 10


def test_abort_keeps_what_was_computed_of_the_prompt() -> None:
    loop = Loop(scripted_info(max_batch_tokens=32))
    loop.add(make_request("gone", range(100), 5))
    loop.step()
    loop.abort("gone")
    assert loop.reasons["gone"] is FinishReason.CANCELLED
    loop.add(make_request("next", range(100), 1))
    loop.run()
    assert loop.backend.num_computed == 100


def test_cells_are_counted_as_used_or_retained() -> None:
    loop = Loop()
    loop.add(make_request("a", SYSTEM, 20))
    loop.step()
    assert (loop.scheduler.kv_used, loop.scheduler.kv_retained) == (len(SYSTEM), 0)
    loop.abort("a")
    assert (loop.scheduler.kv_used, loop.scheduler.kv_retained) == (0, len(SYSTEM))
    assert loop.scheduler.kv_capacity == loop.info.kv_tokens
    assert loop.scheduler.schedule() is None


def test_a_sequence_that_is_finished_from_outside_leaves_its_prefix() -> None:
    loop = Loop()
    loop.add(make_request("a", SYSTEM, 20))
    loop.step()
    loop.scheduler.finish("a", FinishReason.STOP, 1)
    assert not loop.scheduler.has_work
    assert loop.scheduler.sequence("a").finish_reason is FinishReason.STOP
    assert loop.scheduler.kv_retained == len(SYSTEM)


def test_a_prompt_that_was_to_go_on_in_this_step_may_be_preempted_in_it() -> None:
    """Streams have grown until the pool is full while prompts of two priorities are still being computed."""
    loop = Loop(scripted_info(context_size=55, kv_tokens=55, max_batch_tokens=6), max_running=5)
    lengths = [(14, 9, 0), (15, 14, 1), (25, 4, 1), (2, 6, 0), (12, 14, 0)]
    requests = [make_request(f"r{i}", [i] * n, most, priority=p) for i, (n, most, p) in enumerate(lengths)]
    loop.add(requests[0])
    loop.step()
    loop.step()
    for request in requests[1:]:
        loop.add(request)
    loop.run()
    assert loop.num_preempted == 1
    for request in requests:
        assert loop.tokens[request.request_id] == answer_alone(request, 55, 55)


def test_abort_of_an_unknown_request_is_nothing() -> None:
    assert Loop().scheduler.abort("nobody") is None


def test_context_full_is_a_length_finish() -> None:
    loop = Loop(scripted_info(context_size=16, kv_tokens=64))
    loop.add(Request(request_id="r", prompt=(1, 2, 3), sampling=SamplingParams(temperature=0, ignore_eos=True)))
    loop.run()
    assert loop.reasons["r"] is FinishReason.LENGTH
    assert len(loop.tokens["r"]) == 13


def test_a_full_queue_refuses() -> None:
    scheduler = Scheduler(scripted_info(), SchedulerConfig(max_running=1, max_waiting=2))
    for index in range(2):
        scheduler.add(make_request(f"r{index}", [1]))
    with pytest.raises(Overloaded):
        scheduler.add(make_request("r2", [1]))


def test_an_id_in_use_is_refused() -> None:
    scheduler = Scheduler(scripted_info(), SchedulerConfig())
    scheduler.add(make_request("same", [1]))
    with pytest.raises(InvalidInput, match="same"):
        scheduler.add(make_request("same", [1]))
