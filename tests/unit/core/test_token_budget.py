from __future__ import annotations

import random

import pytest

from stoker.core.token_budget import MIN_CHUNK, SLOWDOWN, TokenBudget


def make_budget(target_step_s: float = 0.1) -> TokenBudget:
    return TokenBudget(max_tokens=1000, target_step_s=target_step_s, idle_step_s=0.5)


def seconds(num_decodes: int, num_tokens: int, position: int = 0) -> float:
    """A machine: a pass, its streams, and prompts whose price doubles after 4000 positions."""
    attended = num_tokens * position + num_tokens * num_tokens / 2
    return 0.008 + 0.0005 * num_decodes + 0.0008 * num_tokens + 2e-7 * attended


def run(budget: TokenBudget, num_decodes: int, num_tokens: int, position: int = 0) -> float:
    """One step; returns how long it took."""
    step_s = seconds(num_decodes, num_tokens, position)
    attended = num_tokens * position + num_tokens * num_tokens // 2
    budget.observe(num_tokens, step_s, num_decodes=num_decodes, num_attended=attended)
    return step_s


def test_a_step_without_streams_is_as_long_as_it_may_be() -> None:
    budget = make_budget()
    for _ in range(10):
        run(budget, 0, 200)
    assert seconds(0, budget.prompt_tokens(0)) == pytest.approx(0.5, rel=0.1)


def test_a_long_prompt_slows_streams_by_a_bounded_factor_from_its_first_chunk_to_its_last() -> None:
    budget = make_budget(target_step_s=0.2)
    run(budget, 0, MIN_CHUNK)  # all that is known of prompts, from the start
    for _ in range(8):
        run(budget, 4, 0)
    alone_s = seconds(4, 0)
    position, gaps = 0, list[float]()
    while position < 8000:
        num_tokens = budget.prompt_tokens(4, position=position)
        gaps.append(run(budget, 4, num_tokens, position))
        position += num_tokens
    assert max(gaps) < 3 * alone_s
    # And prompts get their part: it is used.
    assert sum(gaps) / len(gaps) > 0.8 * SLOWDOWN * alone_s


def test_a_prompt_that_goes_on_behind_a_long_prefix_is_priced_there_at_once() -> None:
    budget = make_budget(target_step_s=0.2)
    for _ in range(100):
        run(budget, 4, 0)
        run(budget, 4, 20)
        run(budget, 4, 20, 4000)
    assert seconds(4, budget.prompt_tokens(4, position=7000), 7000) < 4 * seconds(4, 0)
    far = budget.prompt_tokens(4, position=7000)
    assert 1.5 * far < budget.prompt_tokens(4)


def test_no_step_with_streams_is_longer_than_the_aim_but_prompts_always_get_a_third() -> None:
    quick, slow = make_budget(target_step_s=0.02), make_budget(target_step_s=0.009)
    for budget in (quick, slow):
        for _ in range(50):
            run(budget, 4, 0)
            run(budget, 4, 40)
    assert quick.limit_s(4) == 0.02
    assert slow.limit_s(4) == pytest.approx(seconds(4, 0) * 1.5, rel=0.1)


def test_steps_in_turn_share_the_time() -> None:
    budget = make_budget(target_step_s=10.0)
    for _ in range(50):
        run(budget, 1, 0)
        run(budget, 1, 100)
    assert budget.limit_s(1, num_sharing=2) <= 0.6 * budget.limit_s(1) + 1e-9
    assert budget.limit_s(0, has_others=True) == pytest.approx(budget.limit_s(1))


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


@pytest.mark.parametrize(
    ("affordable", "given"),
    [
        (5, 5),
        (7, 7),
        (11, 12),
        (12, 12),
        (13, 12),
        (16, 12),
        (17, 17),
        (23, 23),
        (24, 28),
        (28, 28),
        (29, 28),
        (39, 28),
        (40, 44),
    ],
)
def test_whole_tiles_are_filled_where_they_are_near(affordable: int, given: int) -> None:
    """Beside four streams, on kernels that compute 16 rows at a time."""
    budget = TokenBudget(max_tokens=1000, target_step_s=10.0, idle_step_s=10.0, tile_rows=16)
    assert budget._tiled(affordable + 4) - 4 == given


def test_tiles_count_the_streams_too() -> None:
    budget = TokenBudget(max_tokens=1000, target_step_s=0.2, idle_step_s=0.5, tile_rows=16)
    for _ in range(50):
        run(budget, 8, 0)
        run(budget, 8, 30)
    assert (budget.prompt_tokens(8) + 8) % 16 == 0
    assert budget.prompt_tokens(0) % 16 == 0


def seconds_in_passes(num_decodes: int, chunks: list[int]) -> float:
    """A machine where each chunk of a prompt is a pass of its own: ONNX Runtime's, with a small model."""
    streams_s = 0.0035 + 0.002 * num_decodes if num_decodes else 0.0
    return streams_s + sum(0.005 + 0.0011 * num_tokens for num_tokens in chunks)


def learned_in_passes(*, pass_per_prompt: bool, num_decodes: int = 8) -> TokenBudget:
    rng = random.Random(0)
    budget = TokenBudget(max_tokens=512, target_step_s=0.2, idle_step_s=1.0, pass_per_prompt=pass_per_prompt)
    for _ in range(200):
        most = budget.prompt_tokens(num_decodes)
        chunks = rng.choice([[], [most], [most], [rng.randint(2, most)]])
        budget.observe(
            sum(chunks), seconds_in_passes(num_decodes, chunks), num_decodes=num_decodes, num_prompts=len(chunks)
        )
    return budget


def test_a_chunk_is_worth_the_pass_that_it_takes() -> None:
    """Its entries cost many times what the pass does, though streams wait longer for it than otherwise."""
    budget = learned_in_passes(pass_per_prompt=True)
    chunk = budget.prompt_tokens(8)
    assert chunk >= budget.least_chunk > 40
    assert 0.0011 * chunk > 10 * 0.005
    assert seconds_in_passes(8, [chunk]) < 0.2, "the aim holds"
    shared = learned_in_passes(pass_per_prompt=False)
    assert shared.least_chunk == 1
    assert shared.prompt_tokens(8) < chunk / 2


def test_the_aim_of_a_step_bounds_what_is_worth_a_pass() -> None:
    slow = TokenBudget(max_tokens=512, target_step_s=0.05, idle_step_s=1.0, pass_per_prompt=True)
    for chunks in ([], [20], [40]) * 50:
        slow.observe(sum(chunks), seconds_in_passes(8, chunks), num_decodes=8, num_prompts=len(chunks))
    assert slow.least_chunk > 40
    assert seconds_in_passes(8, [slow.prompt_tokens(8)]) < 0.06


def test_prices_of_several_chunks_are_told_from_those_of_one() -> None:
    budget = TokenBudget(max_tokens=512, target_step_s=0.2, idle_step_s=1.0, pass_per_prompt=True)
    rng = random.Random(1)
    for _ in range(300):
        chunks = [rng.randint(8, 60) for _ in range(rng.randint(0, 3))]
        budget.observe(sum(chunks), seconds_in_passes(4, chunks), num_decodes=4, num_prompts=len(chunks))
    assert budget.token_s == pytest.approx(0.0011, rel=0.1)
    assert budget.least_chunk == pytest.approx(16 * 0.005 / 0.0011, rel=0.2)
