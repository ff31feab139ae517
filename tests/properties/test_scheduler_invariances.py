"""The output of a request depends on the request alone: not on company, pool, order, preemption, pauses or traits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import scripted_info
from stoker.cache.store import KVStore
from stoker.core.batch import Batch
from stoker.core.model_info import WindowPool
from stoker.core.request import Request
from stoker.core.sequence import FinishReason
from stoker.errors import BackendError
from tests import harness
from tests.brief import examples
from tests.harness import ALL_TRAITS, Loop, answer_alone, crowded_clock, random_requests

CONTEXT = 80


def make_loop(rng: random.Random, **overrides: int) -> Loop:
    traits = replace(rng.choice(ALL_TRAITS), can_export=True)
    info = scripted_info(
        context_size=CONTEXT,
        kv_tokens=overrides.get("kv_tokens", rng.choice([50, 80, 90, 140, 400])),
        num_slots=rng.choice([1, 4, 5, 8]),
        max_batch_tokens=rng.choice([1, 3, 8, 64, 256]),
        traits=traits,
    )
    store = KVStore(rng.choice([20_000, 10**6])) if rng.random() < 0.5 else None
    max_running = min(rng.choice([1, 2, 4]), info.num_slots, info.max_batch_tokens)
    if traits.copies_whole:
        reach = rng.choice([5, 20])
        spare = rng.choice([0, 30])
        info = replace(
            info, windows=WindowPool(capacity=max_running * reach + info.max_batch_tokens + spare, reach=reach)
        )
    return Loop(info, max_running, store=store, clock=crowded_clock(rng))


def check_answers(seed: int) -> Loop:
    """Random requests arrive, run and are aborted at random; every complete answer must be the lonely one."""
    rng = random.Random(seed)
    loop = make_loop(rng)
    requests = random_requests(rng, 10, min(CONTEXT, loop.info.kv_tokens))
    waiting = list(requests)
    aborted: set[str] = set()
    for _ in range(harness.MAX_STEPS):
        if not waiting and not loop.scheduler.has_work and not loop.scheduler.num_paused:
            break
        while waiting and (rng.random() < 0.4 or not loop.scheduler.has_work):
            loop.add(waiting.pop())
        if rng.random() < 0.02:
            victim = rng.choice(requests).request_id
            aborted.add(victim)
            loop.abort(victim)
        pause_or_resume(loop, rng, requests)
        if loop.scheduler.has_work:
            loop.step()
    assert not loop.scheduler.has_work, "does not come to an end"
    for request in requests:
        alone = answer_alone(request, CONTEXT, loop.info.kv_tokens)
        got = loop.tokens[request.request_id]
        if loop.reasons[request.request_id] is FinishReason.CANCELLED:
            assert request.request_id in aborted
            assert got == alone[: len(got)]
        else:
            assert got == alone
    assert loop.scheduler.num_running == loop.scheduler.num_waiting == loop.scheduler.num_paused == 0
    return loop


def pause_or_resume(loop: Loop, rng: random.Random, requests: list[Request]) -> None:
    """Readers fall behind and catch up at random; when nobody else is left, they do catch up."""
    if rng.random() < 0.1:
        loop.scheduler.pause(rng.choice(requests).request_id)
    if rng.random() < 0.2 or not loop.scheduler.has_work:
        loop.scheduler.resume(rng.choice(requests).request_id)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_depend_on_nothing_but_the_request(seed: int) -> None:
    check_answers(seed)


def test_the_random_runs_do_preempt_and_do_reuse() -> None:
    """The property above would be empty if nothing ever happened."""
    loops = [check_answers(seed) for seed in range(40)]
    assert sum(loop.num_preempted for loop in loops) > 20
    assert sum(loop.num_paused for loop in loops) > 20
    assert sum(loop.scheduler.num_cached_tokens for loop in loops) > 500


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_a_failing_step_ends_only_its_own_requests(seed: int) -> None:
    rng = random.Random(seed)
    failing = {rng.randrange(1, 40) for _ in range(3)}
    loop = make_loop(rng, kv_tokens=140)

    def fail_sometimes(batch: Batch) -> None:
        if batch.step_id in failing:
            # A real backend may have applied some of the operations before it failed.
            for op in batch.ops[: rng.randrange(len(batch.ops) + 1)]:
                loop.backend._apply(op)
            raise BackendError("injected")

    loop.backend._before_forward = fail_sometimes
    requests = random_requests(rng, 10, CONTEXT)
    for request in requests:
        loop.add(request)
    loop.run()
    for request in requests:
        alone = answer_alone(request, CONTEXT, 140)
        got = loop.tokens[request.request_id]
        if loop.reasons[request.request_id] is FinishReason.ERROR:
            assert got == alone[: len(got)]
        else:
            assert got == alone


@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_unusable_logits_end_one_request_only(traits: object) -> None:
    info = scripted_info(context_size=CONTEXT, kv_tokens=300, traits=traits)  # type: ignore[arg-type]
    loop = Loop(info)
    requests = random_requests(random.Random(5), 4, CONTEXT)
    for request in requests:
        loop.add(request)
    loop.unusable = {"r1"}
    loop.run()
    assert loop.reasons["r1"] is FinishReason.ERROR
    for request in requests:
        if request.request_id != "r1":
            assert loop.tokens[request.request_id] == answer_alone(request, CONTEXT, 300)
