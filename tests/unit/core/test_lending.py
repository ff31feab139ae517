"""A pool whose limit moves: what runs is never lost, answers stay the same, and no more is held than the limit says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stoker.backends.scripted import scripted_info
from stoker.core.model_info import CacheTraits, ModelInfo
from tests.brief import every
from tests.harness import ALL_TRAITS, Loop, answer_alone, make_request

SHARE, MOST = 256, 640
CONTEXT = 200
SHARES_CELLS = ALL_TRAITS[0]


def lending_info(traits: CacheTraits = SHARES_CELLS) -> ModelInfo:
    info = scripted_info(traits=traits, kv_tokens=SHARE, context_size=CONTEXT, num_slots=16)
    return replace(info, most_kv_tokens=MOST, kv_bytes_per_token=10)


def set_limit(loop: Loop, num_cells: int) -> None:
    if (batch := loop.scheduler.lending.set_limit(num_cells)) is not None:
        loop.backend.forward(batch)
    assert loop.backend.num_cells == loop.scheduler.kv.ledger.used <= loop.scheduler.kv.ledger.capacity
    loop.scheduler.check_integrity()


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(20) for _ in range(length)]


@pytest.mark.parametrize("traits", [each for each in ALL_TRAITS if each.can_copy])
@pytest.mark.parametrize("seed", every(3, range(6)))
def test_answers_do_not_depend_on_the_limit(traits: CacheTraits, seed: int) -> None:
    rng = random.Random(seed)
    loop = Loop(lending_info(traits))
    requests = [
        make_request(f"{i}", prompt(rng.randrange(4), rng.randrange(1, 120)), max_tokens=rng.randrange(1, 60))
        for i in range(24)
    ]
    coming = list(requests)
    for _ in range(4000):
        if coming and rng.random() < 0.3:
            loop.add(coming.pop())
        if rng.random() < 0.1:
            set_limit(loop, rng.choice([0, SHARE // 4, SHARE // 2, SHARE, MOST, 2 * MOST]))
        if not loop.scheduler.has_work and not coming:
            break
        if loop.scheduler.has_work:
            loop.step()
    set_limit(loop, SHARE)
    found = loop.run()
    assert len(found) == len(requests)
    for request in requests:
        assert found[request.request_id] == answer_alone(request, CONTEXT, SHARE), request.request_id


def test_it_begins_with_the_least_and_stays_within_its_bounds() -> None:
    loop = Loop(lending_info())
    lending = loop.scheduler.lending
    assert (lending.limit, lending.least, lending.share, lending.most) == (64, 64, SHARE, MOST)
    set_limit(loop, 10**6)
    assert lending.limit == MOST
    set_limit(loop, 0)
    assert lending.limit == lending.least


def test_a_pool_that_lends_nothing_is_as_large_as_before() -> None:
    loop = Loop(scripted_info(kv_tokens=SHARE))
    assert loop.scheduler.kv.ledger.capacity == SHARE
    assert not loop.scheduler.kv.lends


def test_finished_conversations_leave_first_and_the_oldest_of_them() -> None:
    loop = Loop(lending_info())
    set_limit(loop, MOST)
    for i in range(5):
        loop.add(make_request(f"{i}", [i, *prompt(i, 99)], max_tokens=1))
        loop.run()
    loop.add(make_request("runs", [5, *prompt(5, 99)], max_tokens=50))
    loop.step()
    loop.step()
    assert (loop.scheduler.num_running, loop.scheduler.kv_retained) == (1, 500)
    set_limit(loop, SHARE)
    assert (loop.scheduler.num_running, loop.scheduler.num_preemptions) == (1, 0)
    (running,) = loop.scheduler.kv.running_slots
    key = loop.scheduler.kv.key_of(running)
    kept = [loop.scheduler.kv.parting([i, *prompt(i, 99)], key) for i in (0, 4)]
    assert kept == [0, 100]
    assert loop.scheduler.lending.held <= SHARE


def test_what_runs_is_preempted_only_when_it_alone_holds_too_much_and_comes_back() -> None:
    loop = Loop(lending_info())
    set_limit(loop, MOST)
    requests = [make_request(f"{i}", [i, *prompt(i, 99)], max_tokens=60) for i in range(4)]
    for request in requests:
        loop.add(request)
    while loop.scheduler.kv_used < 400:
        loop.step()
    set_limit(loop, SHARE)
    assert 0 < loop.scheduler.num_running * 100 <= SHARE
    assert loop.scheduler.num_preemptions > 0
    assert loop.scheduler.lending.needed > SHARE, "those that wait need room, too"
    loop.step()
    set_limit(loop, MOST)
    found = loop.run()
    assert all(found[r.request_id] == answer_alone(r, CONTEXT, SHARE) for r in requests)


def test_a_request_that_fits_into_the_share_waits_while_that_is_lent() -> None:
    loop = Loop(lending_info())
    set_limit(loop, 0)
    request = make_request("long", prompt(1, 150), max_tokens=20)
    loop.add(request)
    assert loop.scheduler.schedule() is None
    assert loop.scheduler.kv.lends
    assert loop.scheduler.lending.needed == 151
    set_limit(loop, SHARE)
    assert loop.run()["long"] == answer_alone(request, CONTEXT, SHARE)


def test_an_answer_that_outgrows_a_lent_pool_goes_on_when_it_is_given_back() -> None:
    loop = Loop(lending_info())
    set_limit(loop, 0)
    request = make_request("grows", prompt(1, 60), max_tokens=60)
    loop.add(request)
    while (batch := loop.scheduler.schedule()) is not None:
        loop.scheduler.update(batch, [int(row.argmax()) for row in loop.backend.forward(batch)])
    assert loop.scheduler.num_running == 1, "it keeps what it has"
    assert loop.scheduler.lending.needed == 65
    set_limit(loop, SHARE)
    sequence = loop.scheduler.sequence("grows")
    before = sequence.entries[sequence.num_prompt :]
    assert [*before, *loop.run()["grows"]] == answer_alone(request, CONTEXT, SHARE)


def test_shortage_is_what_was_evicted_for_want_of_room_and_not_what_was_lent() -> None:
    loop = Loop(lending_info())
    lending = loop.scheduler.lending
    set_limit(loop, SHARE)
    for i in range(3):
        loop.add(make_request(f"{i}", [i, *prompt(i, 79)], max_tokens=1))
        loop.run()
    assert not lending.take_shortage()
    loop.add(make_request("more", [9, *prompt(9, 79)], max_tokens=1))
    loop.run()
    assert lending.take_shortage()
    assert not lending.take_shortage()
    set_limit(loop, 0)
    assert not lending.take_shortage()
