"""Where a sequence's last entries stood before, and what came then."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.prompt_lookup import MAX_MATCH, PromptLookup


def find_slowly(entries: list[int]) -> tuple[int, int]:
    """The slow, obvious reference: every earlier end, the latest first, compared entry by entry."""
    start, best = 0, 0
    for place in range(len(entries) - 2, -1, -1):
        length = 0
        while length < MAX_MATCH and length <= place and entries[place - length] == entries[-1 - length]:
            length += 1
        if length > best:
            start, best = place + 1, length
    return start, best


def test_the_longest_match_wins() -> None:
    entries = [1, 2, 3, 70, 9, 2, 3, 80, 3, 90, 1, 2, 3]
    assert PromptLookup(entries).find() == (3, 3)


def test_of_equal_matches_the_latest_wins() -> None:
    assert PromptLookup([5, 1, 5, 2, 5]).find() == (3, 1)


def test_what_never_stood_before_is_not_found() -> None:
    assert PromptLookup([1, 2, 3]).find() == (0, 0)


def test_what_is_appended_is_found() -> None:
    entries = [1, 2]
    lookup = PromptLookup(entries)
    assert lookup.find() == (0, 0)
    entries += [3, 1]
    assert lookup.find() == (1, 1)


def test_a_guess_beyond_the_end_repeats() -> None:
    lookup = PromptLookup([7, 1, 2, 1, 2])
    start, _ = lookup.find()
    assert lookup.guess(start, 5) == [1, 2, 1, 2, 1]


@given(st.integers(0, 2**32))
def test_it_finds_what_a_slow_search_finds(seed: int) -> None:
    """Over an alphabet that is large enough for no entry to stand in more places than are looked at."""
    rng = random.Random(seed)
    entries = [rng.randrange(12) for _ in range(rng.randrange(1, 60))]
    lookup = PromptLookup(entries[:1])
    kept = lookup._entries
    for entry in entries[1:]:
        kept.append(entry)
        if max(map(kept.count, set(kept))) <= 32:
            assert lookup.find() == find_slowly(kept)
