"""A step that is planned again is the one that would be planned anew: same batches, same ledger, same fairness."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import scripted_info
from stoker.cache.store import KVStore
from stoker.core.batch import Batch
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler
from tests.brief import examples
from tests.harness import ALL_TRAITS, Loop, crowded_clock, make_request

CONTEXT = 80


def make_loop(seed: int) -> tuple[Loop, list[Batch]]:
    """Equal seeds make equal loops; and what they compute."""
    rng = random.Random(seed)
    info = scripted_info(
        context_size=CONTEXT,
        kv_tokens=rng.choice([80, 140, 400]),
        num_slots=rng.choice([4, 5, 8]),
        max_batch_tokens=rng.choice([8, 64]),
        traits=replace(rng.choice(ALL_TRAITS), can_export=True),
        mixes_adapters=rng.random() < 0.5,
    )
    store = KVStore(rng.choice([20_000, 10**6])) if rng.random() < 0.5 else None
    batches: list[Batch] = []
    loop = Loop(info, rng.choice([2, 4]), store=store, clock=crowded_clock(rng), before_forward=batches.append)
    return loop, batches


def plan_anew(scheduler: Scheduler) -> None:
    """Has every step planned as if the one before had been another."""
    schedule = scheduler.schedule

    def schedule_anew() -> Batch | None:
        scheduler._end_run()
        return schedule()

    scheduler.schedule = schedule_anew


def long_requests(rng: random.Random, num: int) -> list[Request]:
    """Few of which come together: most steps are decodes only."""
    stem = [rng.randrange(250) for _ in range(35)]
    return [
        make_request(
            f"r{index}",
            stem[: rng.choice([0, 0, 20, 35])] + [rng.randrange(250) for _ in range(rng.randrange(1, 9))],
            max_tokens=rng.randrange(1, 35),
            priority=rng.choice([0, 0, 0, 1]),
            client_key=rng.choice("abc"),
            cache_prompt=rng.random() < 0.8,
            adapters=(("a", 1.0),) if rng.random() < 0.2 else (),
        )
        for index in range(num)
    ]


def check_plans(seed: int) -> tuple[int, int]:
    """Two equal loops, one of which plans every step anew; returns how many steps there were, and were repeated."""
    rng = random.Random(seed)
    (again, again_batches), (anew, anew_batches) = make_loop(seed), make_loop(seed)
    plan_anew(anew.scheduler)
    requests = long_requests(rng, 8)
    coming = list(requests)
    num_repeated = 0
    for _ in range(600):
        if not coming and not again.scheduler.has_work and not again.scheduler.num_paused:
            break
        is_idle = not again.scheduler.has_work
        arrival = coming.pop() if coming and (rng.random() < 0.1 or is_idle) else None
        aborted = rng.choice(requests).request_id if rng.random() < 0.01 else None
        paused = rng.choice(requests).request_id if rng.random() < 0.02 else None
        resumed = rng.choice(requests).request_id if rng.random() < 0.05 or is_idle else None
        erased = rng.randrange(again.info.num_slots) if rng.random() < 0.05 else None
        step_s = rng.choice([0.001, 0.01, 0.3])
        for loop, batches in ((again, again_batches), (anew, anew_batches)):
            if arrival is not None:
                loop.add(arrival)
            if aborted is not None:
                loop.abort(aborted)
            if paused is not None:
                loop.scheduler.pause(paused)
            if resumed is not None:
                loop.scheduler.resume(resumed)
            if erased is not None:
                loop.scheduler.kv.erase(erased)
            if loop.scheduler.has_work:
                loop.step()
                loop.scheduler.observe(batches[-1], step_s)
        run = again.scheduler._run
        num_repeated += run is not None and run.batch is again_batches[-1]
        assert again_batches == anew_batches
        assert again.scheduler.kv.ledger.used == anew.scheduler.kv.ledger.used
        assert again.scheduler.kv.held_by_retained == anew.scheduler.kv.held_by_retained
    assert again.tokens == anew.tokens
    assert again.reasons == anew.reasons
    return len(again_batches), num_repeated


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_planned_again_is_what_would_be_planned_anew(seed: int) -> None:
    check_plans(seed)


def test_many_steps_are_planned_again() -> None:
    """The property above would be empty if none were."""
    steps = [check_plans(seed) for seed in range(20)]
    assert sum(repeated for _, repeated in steps) > sum(all_of_them for all_of_them, _ in steps) / 4


def test_clients_are_charged_for_repeated_steps() -> None:
    """Whoever was given much waits behind who was given little, also if nobody looked meanwhile."""
    again, _ = make_loop(1)
    anew, _ = make_loop(1)
    plan_anew(anew.scheduler)
    for loop in (again, anew):
        loop.add(make_request("r", [1, 2, 3], max_tokens=20, client_key="a"))
        for _ in range(10):
            loop.step()
        loop.add(make_request("s", [4, 5], client_key="b"))
    assert again.scheduler._population._waiting._served == anew.scheduler._population._waiting._served
