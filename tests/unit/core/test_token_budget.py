from __future__ import annotations

from stoker.core.token_budget import MIN_CHUNK, TokenBudget


def make_budget() -> TokenBudget:
    return TokenBudget(max_tokens=1000, target_step_s=0.1, idle_step_s=0.5)


def test_a_step_is_as_long_as_it_may_be() -> None:
    budget = make_budget()
    budget.observe(100, 0.1)
    assert budget.prompt_tokens(0) == 500
    assert budget.prompt_tokens(20) == 80


def test_steps_that_say_nothing_are_ignored() -> None:
    budget = make_budget()
    first_guess = budget.prompt_tokens(0)
    budget.observe(MIN_CHUNK - 1, 5.0)
    budget.observe(100, 0.0)
    assert budget.prompt_tokens(0) == first_guess


def test_a_slow_machine_still_advances_and_a_fast_one_fills_no_more_than_a_batch() -> None:
    slow, fast = make_budget(), make_budget()
    slow.observe(100, 1000.0)
    fast.observe(100, 1e-9)
    assert slow.prompt_tokens(5) == MIN_CHUNK
    assert fast.prompt_tokens(5) == 995
    assert fast.prompt_tokens(1000) == 0
