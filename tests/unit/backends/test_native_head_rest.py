"""When a draft head stops seeing what the model computes."""

from __future__ import annotations

from stoker.backends.native.draft_head import HeadRest


def share_seen(rest: HeadRest, steps: int, entries: int, drafts_every: int, num_decodes: int = 1) -> float:
    """Of the entries of some steps, which the decodes share."""
    num_seen = 0
    for step in range(steps):
        num_seen += rest.sees(0, entries, num_decodes)
        if drafts_every and step % drafts_every == 0:
            rest.note_drafts(num_decodes)
    return num_seen / steps


def test_a_head_that_is_never_asked_sees_one_entry_in_seventeen() -> None:
    for entries in (64, 512):
        assert abs(share_seen(HeadRest(), 10 * 17 * 4096 // entries, entries, 0) - 1 / 17) < 0.01


def test_a_head_that_is_asked_in_most_steps_sees_everything() -> None:
    assert share_seen(HeadRest(), 5_000, 3, drafts_every=1) == 1
    rest = HeadRest()
    for _ in range(50):  # prompts before each answer
        assert rest.sees(2000, 0, 0)
        assert share_seen(rest, 60, 3, drafts_every=2) == 1


def test_a_head_that_is_asked_now_and_then_rests() -> None:
    assert share_seen(HeadRest(), 40_000, 1, drafts_every=280) < 0.5


def test_with_many_decodes_in_a_step_a_head_that_is_not_asked_rests_soon() -> None:
    for num_decodes, last in ((1, 4096), (4, 256), (8, 64), (16, 16)):
        rest = HeadRest()
        seen = [rest.sees(0, num_decodes, num_decodes) for _ in range(last + 1)]
        assert seen == [True] * last + [False]
        assert share_seen(rest, 17 * last, num_decodes, 0, num_decodes) < 0.07


def test_with_many_decodes_a_head_that_is_asked_sees_everything() -> None:
    assert share_seen(HeadRest(), 5_000, 8 * 3, drafts_every=4, num_decodes=8) == 1


def test_a_prompt_beside_many_decodes_does_not_make_it_rest() -> None:
    rest = HeadRest()
    assert all(rest.sees(512, 4, 4) for _ in range(4))
