"""What is reported of a draft head's guesses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stoker.backends.base import Guess, most_likely
from stoker.core.batch import Entry
from stoker.core.sequence import Sequence as RunningSequence
from stoker.engine.draft_head import HeadDrafts
from tests.harness import make_request


class Head:
    """Guesses the same token, however much it has not seen. Satisfies `DraftHeadPort`."""

    def __init__(self, num_waiting: int) -> None:
        self._num_waiting = num_waiting

    def can_draft(self, slot: int) -> bool:
        return slot >= 0

    def num_waiting(self, slot: int) -> int:
        return self._num_waiting if slot >= 0 else 0

    def draft(self, wanted: Sequence[tuple[int, int, Entry, int]], guess: Guess = most_likely) -> list[list[Entry]]:
        return [[7] * count for _, _, _, count in wanted]


@pytest.mark.parametrize(("num_waiting", "expected"), [(0, 0), (16, 0), (17, 17), (63, 63)])
def test_a_guess_that_sees_a_prompt_first_says_so(num_waiting: int, expected: int) -> None:
    drafts = HeadDrafts(Head(num_waiting), 100, lambda *_: [], lambda: 0.0)
    sequence = RunningSequence(make_request("r", [1, 2, 3]))
    sequence.slot = 0
    found = drafts.draft([(sequence, 3)])
    assert found.drafts == [[7, 7, 7]]
    assert (found.num_passes, found.num_caught_up) == (3, expected)
