"""When a draft head stops seeing what the model computes."""

from __future__ import annotations

from stoker.backends.native.head_rest import HeadRest


def share_seen(rest: HeadRest, steps: int, entries: int, drafts_every: int) -> float:
    """Of the entries of some steps."""
    num_seen = 0
    for step in range(steps):
        num_seen += rest.sees(entries)
        if drafts_every and step % drafts_every == 0:
            rest.note_draft()
    return num_seen / steps


def test_a_head_that_is_never_asked_sees_one_entry_in_seventeen() -> None:
    for entries in (64, 512):
        assert abs(share_seen(HeadRest(), 10 * 17 * 4096 // entries, entries, 0) - 1 / 17) < 0.01


def test_a_head_that_is_asked_in_most_steps_sees_everything() -> None:
    assert share_seen(HeadRest(), 5_000, 3, drafts_every=1) == 1
    rest = HeadRest()
    for _ in range(50):  # prompts before each answer
        assert rest.sees(2000)
        assert share_seen(rest, 60, 3, drafts_every=2) == 1


def test_a_head_that_is_asked_now_and_then_rests() -> None:
    assert share_seen(HeadRest(), 40_000, 1, drafts_every=280) < 0.5
