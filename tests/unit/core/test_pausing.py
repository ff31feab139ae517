"""A request whose reader is behind: its place goes to others, and its KV only when they need the room."""

from __future__ import annotations

import pytest

from stoker.backends.scripted import scripted_info
from stoker.core.sequence import FinishReason
from tests.harness import ALL_TRAITS, Loop, answer_alone, make_request

CONTEXT = 80


def make_loop(*, max_running: int = 1, kv_tokens: int = 400, traits: object = ALL_TRAITS[0]) -> Loop:
    info = scripted_info(context_size=CONTEXT, kv_tokens=kv_tokens, num_slots=4, traits=traits)  # type: ignore[arg-type]
    return Loop(info, max_running=max_running)


def run_until(loop: Loop, request_id: str, num_tokens: int) -> None:
    while len(loop.tokens[request_id]) < num_tokens:
        loop.step()


@pytest.mark.parametrize("traits", ALL_TRAITS)
@pytest.mark.parametrize("cache_prompt", [True, False])
def test_nothing_is_computed_twice_if_nobody_needed_the_room(traits: object, cache_prompt: bool) -> None:
    loop = make_loop(traits=traits)
    request = make_request("a", range(10), max_tokens=20, cache_prompt=cache_prompt)
    loop.add(request)
    run_until(loop, "a", 3)
    loop.scheduler.pause("a")
    assert not loop.scheduler.has_work
    assert (loop.scheduler.num_running, loop.scheduler.num_waiting, loop.scheduler.num_paused) == (0, 0, 1)
    loop.scheduler.resume("a")
    tokens = loop.run()["a"]
    assert tokens == answer_alone(request, CONTEXT, 400)
    assert loop.backend.num_computed == len(request.prompt) + len(tokens) - 1


def test_its_place_goes_to_who_waits() -> None:
    loop = make_loop(max_running=1)
    for request_id in ("a", "b"):
        loop.add(make_request(request_id, range(ord(request_id), ord(request_id) + 9), max_tokens=20))
    run_until(loop, "a", 3)
    loop.scheduler.pause("a")
    loop.run()
    assert loop.reasons.keys() == {"b"}
    assert len(loop.tokens["a"]) == 3
    loop.scheduler.resume("a")
    loop.run()
    assert loop.reasons.keys() == {"a", "b"}


def test_its_kv_makes_room_and_is_computed_again() -> None:
    loop = make_loop(max_running=2, kv_tokens=60)
    paused = make_request("a", range(30), max_tokens=20)
    loop.add(paused)
    run_until(loop, "a", 3)
    loop.scheduler.pause("a")
    loop.add(make_request("b", range(100, 150), max_tokens=8))
    loop.run()
    assert loop.reasons.keys() == {"b"}
    loop.scheduler.resume("a")
    assert loop.run()["a"] == answer_alone(paused, CONTEXT, 60)


def test_who_waits_can_be_paused_too_and_pausing_twice_is_once() -> None:
    loop = make_loop(max_running=1)
    for request_id in ("a", "b"):
        loop.add(make_request(request_id, range(9), max_tokens=4))
    loop.step()
    for _ in range(2):
        loop.scheduler.pause("b")
    loop.run()
    assert loop.reasons.keys() == {"a"}
    for _ in range(2):
        loop.scheduler.resume("b")
    loop.run()
    assert loop.reasons.keys() == {"a", "b"}


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_aborted_it_leaves_only_what_others_may_use(cache_prompt: bool) -> None:
    loop = make_loop()
    loop.add(make_request("a", range(10), max_tokens=20, cache_prompt=cache_prompt))
    run_until(loop, "a", 3)
    loop.scheduler.pause("a")
    assert loop.scheduler.kv_used == 0
    loop.abort("a")
    loop.scheduler.check_integrity()
    assert loop.reasons["a"] is FinishReason.CANCELLED
    assert (loop.scheduler.kv_retained > 0) is cache_prompt
    assert loop.scheduler.num_paused == 0
    loop.scheduler.resume("a")
    assert not loop.scheduler.has_work


def test_unknown_requests_are_ignored() -> None:
    loop = make_loop()
    loop.scheduler.pause("nobody")
    loop.scheduler.resume("nobody")
    assert loop.scheduler.num_paused == 0
