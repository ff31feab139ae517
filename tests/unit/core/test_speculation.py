"""Drafts are made where they bring more tokens a second, by times that are given here and never measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stoker.core.draft_times import DraftTimes
from stoker.core.sequence import Sequence
from stoker.core.speculation import Speculation
from tests.harness import make_request

LOOP = [1, 2, 3, 4]
Seconds = Callable[[int], float]
"""Of a step, by drafted entries."""


def cheap(num_drafted: int) -> float:
    return 1 + 0.05 * num_drafted


def dear(num_drafted: int) -> float:
    return 1.0 + num_drafted


def make_sequence(prompt: list[int], max_tokens: int = 10**6) -> Sequence:
    sequence = Sequence(make_request("r", prompt), max_entries=len(prompt) + max_tokens)
    sequence.num_computed = len(prompt) - 1
    return sequence


def step(speculation: Speculation, sequence: Sequence, truth: Callable[[int], int], seconds: Seconds) -> int:
    """One step of one sequence that really goes on as `truth` says for each position; returns what was drafted."""
    drafts = speculation.drafts([sequence], 1000)
    draft = [] if drafts is None else drafts[0]
    num_accepted = 0
    while num_accepted < len(draft) and draft[num_accepted] == truth(len(sequence.entries) + num_accepted):
        num_accepted += 1
    sequence.entries += [truth(len(sequence.entries) + i) for i in range(num_accepted + 1)]
    speculation.observe(sequence, len(draft), num_accepted)
    speculation.observe_step(1, len(draft), seconds(len(draft)))
    return len(draft)


def repeat(position: int) -> int:
    return LOOP[position % len(LOOP)]


def surprise(position: int) -> int:
    """Never what was there before, but its last entry always was."""
    return position if position % 2 else LOOP[0]


def test_nothing_is_drafted_before_a_step_was_measured() -> None:
    assert Speculation(15, 512).drafts([make_sequence(LOOP * 4)], 100) is None


def test_a_loop_is_drafted_as_far_as_is_allowed() -> None:
    speculation, sequence = Speculation(15, 512), make_sequence(LOOP * 4)
    sizes = [step(speculation, sequence, repeat, cheap) for _ in range(60)]
    assert sizes[-1] == 15
    assert speculation.num_accepted == speculation.num_drafted == sum(sizes)
    assert speculation.num_drafts == sum(size > 0 for size in sizes)


def test_what_costs_more_than_it_brings_is_tried_now_and_then() -> None:
    speculation, sequence = Speculation(15, 512), make_sequence(LOOP * 4)
    sizes = [step(speculation, sequence, surprise, dear) for _ in range(2000)]
    assert sum(size > 0 for size in sizes) > 0
    assert sum(map(dear, sizes)) < 1.02 * len(sizes)


def test_what_never_comes_out_is_drafted_ever_less() -> None:
    speculation, sequence = Speculation(15, 512), make_sequence(LOOP * 4)
    sizes = [step(speculation, sequence, surprise, cheap) for _ in range(400)]
    assert sum(sizes[:50]) > 0
    assert sum(map(cheap, sizes[200:])) < 1.02 * 200


def test_a_sequence_that_begins_to_repeat_is_drafted_again() -> None:
    speculation, sequence = Speculation(15, 512), make_sequence(LOOP * 4)
    for _ in range(200):
        step(speculation, sequence, surprise, cheap)
    sizes = [step(speculation, sequence, repeat, cheap) for _ in range(100)]
    assert sizes[-1] == 15


def test_one_long_step_does_not_end_drafts() -> None:
    speculation, sequence = Speculation(15, 512), make_sequence(LOOP * 4)
    for index in range(10):
        step(speculation, sequence, repeat, lambda count, index=index: 50.0 if index == 3 else cheap(count))
    sizes = [step(speculation, sequence, repeat, cheap) for _ in range(200)]
    assert sizes[-1] == 15


@pytest.mark.parametrize(
    ("room", "max_tokens", "expected"), [(0, 1000, 0), (1, 1000, 0), (4, 1000, 3), (1000, 5, 4), (1000, 1, 0)]
)
def test_drafts_fit_into_the_pool_and_into_the_answer(room: int, max_tokens: int, expected: int) -> None:
    """The row behind the last drafted entry gives a token, too."""
    speculation = Speculation(15, 512)
    for num_drafted in range(16):
        speculation.observe_step(1, num_drafted, cheap(num_drafted))
    drafts = speculation.drafts([make_sequence(LOOP * 4, max_tokens)], room)
    assert sum(map(len, drafts or [])) == expected


def test_who_repeats_is_drafted_as_far_as_others_do_not_wait_long_for_it() -> None:
    speculation = Speculation(15, 512)
    for num_drafted in range(32):
        speculation.observe_step(2, num_drafted, cheap(num_drafted))
    drafts = speculation.drafts([make_sequence([7, 8, 9]), make_sequence(LOOP * 4)], 1000)
    assert drafts == [[], [1, 2, 3, 4]]
    drafts = speculation.drafts([make_sequence(LOOP * 4), make_sequence(LOOP * 4)], 1000)
    assert drafts is not None
    assert min(map(len, drafts)) > 8, "nobody waits for anybody"


def test_no_drafts_are_made_if_none_may_be() -> None:
    speculation = Speculation(0, 512)
    speculation.observe_step(1, 0, 1.0)
    assert speculation.begin_step() == 0
    assert speculation.drafts([make_sequence(LOOP * 4)], 100) is None


def test_times_lie_between_what_was_measured() -> None:
    times = DraftTimes()
    assert times.curve(2, 3) == []
    times.observe(2, 0, 1.0)
    times.observe(2, 4, 1.2)
    assert times.curve(2, 4) == pytest.approx([1.0, 1.05, 1.1, 1.15, 1.2])
    assert times.curve(1, 4) == [], "another number of sequences"
    assert times.curve(2, 6)[6] > 1.2


def test_more_entries_never_take_less_time() -> None:
    """Neighbours only make a step longer, so the shorter time is the better one."""
    times = DraftTimes()
    times.observe(1, 0, 1.0)
    times.observe(1, 1, 2.0)
    times.observe(1, 2, 1.1)
    assert times.curve(1, 2) == [1.0, 1.1, 1.1]
    times.observe(1, 3, 0.8)
    assert times.curve(1, 2) == [0.8, 0.8, 0.8]


def test_a_step_without_drafts_is_measured_again_and_again() -> None:
    times = DraftTimes()
    times.observe(1, 0, 1.0)
    for _ in range(100):
        times.observe(1, 2, 1.1)
    assert times.curve(1, 2) == []
    times.observe(1, 0, 3.0)
    assert times.curve(1, 2) == pytest.approx([1.1, 1.1, 1.1]), "one long step changes little"


def test_steps_of_many_sequences_are_tried_too() -> None:
    speculation = Speculation(15, 512)
    speculation.observe_step(32, 0, 1.0)
    assert speculation.drafts([make_sequence(LOOP * 4) for _ in range(32)], 1000) is not None


def test_what_was_measured_long_ago_is_forgotten() -> None:
    times = DraftTimes()
    times.observe(1, 0, 1.0)
    times.observe(1, 3, 4.0)
    before = times.curve(1, 3)[3]
    for _ in range(300):
        times.observe(1, 0, 1.0)
    assert times.curve(1, 3)[3] < before / 2


def test_after_a_failure_nothing_is_drafted_for_a_while() -> None:
    speculation, sequence = Speculation(15, 512), make_sequence(LOOP * 4)
    speculation.observe_step(1, 0, 1.0)
    speculation.has_failed()
    assert [speculation.begin_step() for _ in range(1025)] == [0] * 1024 + [15]
    assert speculation.drafts([sequence], 100) is not None
