from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.backends.scripted import scripted_info
from stoker.core.batch import Batch, CopyPrefix
from stoker.core.params import SamplingParams
from stoker.core.request import Request
from stoker.core.sequence import FinishReason, Sequence
from stoker.core.step_plan import share_budget
from stoker.core.token_budget import TokenBudget
from stoker.errors import BackendError
from tests.harness import Loop, answer_alone, make_request

LONG = [index % 250 for index in range(3000)]
SYSTEM = list(range(100))


def endless(request_id: str, prompt: list[int], max_tokens: int = 200, **fields: object) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=request_id, prompt=tuple(prompt), sampling=sampling, **fields)  # type: ignore[arg-type]


def long_context(max_batch_tokens: int = 64, kv_tokens: int = 8000) -> Loop:
    return Loop(scripted_info(context_size=4000, kv_tokens=kv_tokens, max_batch_tokens=max_batch_tokens))


@pytest.mark.parametrize("priority", [0, 1])
def test_a_short_prompt_does_not_wait_for_a_long_one_to_be_computed(priority: int) -> None:
    loop = long_context()
    loop.add(make_request("long", LONG, 1))
    loop.step()
    loop.add(make_request("short", [1, 2, 3], 1, priority=priority, client_key="other"))
    loop.step()
    assert "short" in loop.reasons


def test_long_prompts_do_not_take_every_slot_while_the_first_is_computed() -> None:
    loop = long_context()
    for index in range(4):
        loop.add(make_request(f"long{index}", [index, *LONG], 1, client_key=str(index)))
    for _ in range(5):
        loop.step()
    assert loop.scheduler.num_running == 1


def test_a_long_prompt_is_passed_over_for_short_ones_within_a_bound() -> None:
    loop = long_context()
    loop.add(make_request("first", LONG, 1))
    loop.step()
    loop.add(make_request("second", [7, *LONG], 1, client_key="b"))
    num_steps = 0
    while loop.scheduler.sequence("second").slot is None:
        loop.add(make_request(f"short{num_steps}", [num_steps, 1, 2], 1, client_key=f"s{num_steps}"))
        loop.step()
        num_steps += 1
    assert num_steps <= 10


def test_the_oldest_has_its_quarter_although_a_step_has_no_room_for_what_is_worth_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TokenBudget, "least_chunk", 40)
    monkeypatch.setattr(TokenBudget, "prompt_tokens", lambda *_, **__: 8)
    loop = long_context()
    loop.add(make_request("long", LONG[:100], 1))
    num_steps = 0
    while "long" not in loop.reasons and num_steps < 200:
        for index in range(3):
            if f"{num_steps // 6}.{index}" not in loop.reasons and num_steps % 6 == 0:
                loop.add(make_request(f"{num_steps // 6}.{index}", [num_steps % 250, index, *range(18)], 1))
        loop.step()
        num_steps += 1
    assert num_steps < 70, "a quarter of 8 tokens a step"


def test_the_oldest_prompt_advances_however_small_the_budget() -> None:
    oldest = Sequence(make_request("old", range(50)), arrival=1)
    newer = Sequence(make_request("new", range(9)), arrival=2)
    assert {s.request.request_id: n for s, n in share_budget([newer, oldest], 2)} == {"old": 1, "new": 1}


def shares(prompts: list[Sequence], budget: int, **options: int) -> dict[str, int]:
    return {s.request.request_id: n for s, n in share_budget(prompts, budget, **options)}


def test_nobody_gets_less_than_is_worth_a_pass() -> None:
    oldest = Sequence(make_request("old", range(500)), arrival=1)
    middle = Sequence(make_request("middle", range(90)), arrival=2)
    short = Sequence(make_request("short", range(20)), arrival=3)
    everybody = [oldest, middle, short]
    assert shares(everybody, 60, for_oldest=0, least=40) == {"short": 20, "middle": 40}
    assert shares(everybody, 50, for_oldest=0, least=40) == {"short": 20}
    assert shares(everybody, 50, for_oldest=45, least=40) == {"old": 50}
    assert shares([oldest, middle], 50, for_oldest=0, least=40) == {"middle": 50}
    assert shares([oldest], 30, for_oldest=0, least=40) == {"old": 30}, "somebody always gets something"


def test_what_little_would_be_left_of_a_prompt_goes_along() -> None:
    only = [Sequence(make_request("only", range(90)), arrival=1)]
    assert shares(only, 80, for_oldest=0, least=40, most=500) == {"only": 90}
    assert shares(only, 79, for_oldest=0, least=40, most=500) == {"only": 79}
    assert shares(only, 80, for_oldest=0, least=40, most=85) == {"only": 85}
    assert shares(only, 80, for_oldest=0, least=40) == {"only": 80}


@pytest.mark.parametrize("pass_per_prompt", [False, True])
def test_a_long_prompt_is_not_starved_by_short_ones(pass_per_prompt: bool) -> None:
    info = scripted_info(context_size=2000, kv_tokens=8000, max_batch_tokens=64)
    loop = Loop(replace(info, pass_per_prompt=pass_per_prompt))
    for num_tokens in (0, 20, 60) * 50:
        loop.scheduler._budget.observe(num_tokens, 0.01 + 0.0025 * num_tokens, num_decodes=1)
    loop.add(make_request("long", [index % 7 for index in range(1000)], 1))
    for step in range(120):
        loop.add(make_request(f"short{step}", [step % 50, *([3] * 60)], 1, client_key=f"s{step}"))
        loop.step()
    assert loop.tokens["long"]


def test_what_running_prompts_still_need_is_not_given_away() -> None:
    loop = Loop(scripted_info(context_size=1000, kv_tokens=1000, max_batch_tokens=64))
    loop.add(make_request("first", [index % 7 for index in range(900)], 1))
    loop.step()
    loop.add(make_request("second", [9] * 200, 1))
    loop.run()
    assert loop.num_preempted == 0
    assert loop.backend.num_computed == 1100


def test_whoever_waits_for_a_prefix_is_admitted_when_it_is_there_though_another_has_no_place() -> None:
    loop = Loop(scripted_info(context_size=400, kv_tokens=400))
    loop.add(endless("leader", [*SYSTEM, 1], client_key="a"))
    loop.add(make_request("follower", [*SYSTEM, 2], 1, client_key="b"))
    loop.add(make_request("large", [200] * 380, 1, client_key="c"))
    loop.step()
    assert loop.scheduler.sequence("follower").slot is None
    loop.step()
    assert "follower" in loop.reasons


def test_nobody_waits_for_a_prefix_that_a_lower_priority_computes() -> None:
    loop = long_context()
    loop.add(make_request("low", LONG, 1))
    loop.step()
    loop.add(make_request("high", [*LONG[:2000], 251], 1, priority=1))
    loop.step()
    assert loop.scheduler.sequence("high").slot is not None


def test_an_abort_of_the_first_in_line_lets_the_next_one_in() -> None:
    loop = Loop(scripted_info(context_size=400, kv_tokens=400))
    loop.add(endless("runs", SYSTEM))
    loop.add(make_request("large", [200] * 380, 1))
    loop.add(make_request("small", [7, 8, 9], 1))
    loop.step()
    loop.abort("large")
    loop.step()
    assert "small" in loop.reasons


def test_one_who_becomes_first_in_line_while_another_has_no_place_is_admitted() -> None:
    loop = Loop(scripted_info(context_size=400, kv_tokens=400))
    loop.add(endless("runs", SYSTEM, client_key="busy"))
    loop.add(make_request("large", [200] * 380, 1, client_key="a"))
    loop.step()
    loop.add(endless("beside", [4, 5, 6], 50, client_key="b", priority=1))
    loop.add(make_request("small", [7, 8, 9], 1, client_key="c"))
    loop.step()
    loop.scheduler._population.charge("a", 10)
    loop.step()
    assert "small" in loop.reasons


def test_one_that_could_reuse_more_but_has_no_place_holds_up_nobody() -> None:
    loop = Loop(scripted_info(context_size=400, kv_tokens=400))
    loop.add(endless("runs", SYSTEM))
    loop.step()
    loop.add(make_request("small", [7, 7, 7], 1, client_key="a"))
    loop.add(make_request("large", [*SYSTEM, *[9] * 299], 1, client_key="b"))
    loop.step()
    assert "small" in loop.reasons


def test_a_failed_step_spares_whoever_it_admitted_without_computing_anything() -> None:
    """The copy of its prefix may or may not have been made: it has to begin again in an empty slot."""
    fails = False
    copied_to = set[int]()

    def fail(batch: Batch) -> None:
        if fails:
            copied_to.update(op.target for op in batch.ops if isinstance(op, CopyPrefix))
            copied_to.difference_update(chunk.slot for chunk in batch.chunks)
            raise BackendError("injected")

    loop = Loop(scripted_info(max_batch_tokens=8), before_forward=fail)
    loop.add(make_request("base", range(40), 1))
    loop.run()
    loop.add(make_request("long", range(100, 200), 1))
    loop.step()
    loop.add(make_request("short", [*range(34), *range(210, 216)], 1, client_key="b"))
    spared = make_request("spared", [*range(35), *range(220, 227)], 3, client_key="c")
    loop.add(spared)
    fails = True
    loop.step()
    fails = False
    assert copied_to, "nobody was admitted without a chunk"
    loop.run()
    assert FinishReason.ERROR not in loop.reasons.values()
    assert loop.tokens["spared"] == answer_alone(spared, 512, 2048)
