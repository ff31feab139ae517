"""Which replica gets a request: what each costs, and that the fast way to the choice finds what the slow one finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.engine.blocks_held import MEMORY, POOL, RemovedBlocks, StoredBlocks
from stoker.engine.protocol import Accepted
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime import prefix_holders, routing, standings
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.prefix_holders import numbers_in
from stoker.runtime.routing import Beginning
from stoker.runtime.standings import KV_FULL, Candidate, Matches, Standings, matched_by
from tests.unit.runtime.slow_routing import SlowPrefixes, choose


def candidate(number: int, **fields: Any) -> Candidate:
    given: dict[str, Any] = {"number": number, "work": 0, "parallel": 4, "max_open": 8, **fields}
    return Candidate(**given)


def chosen_of(candidates: list[Candidate], matches: Matches = (), **options: Any) -> int | None:
    found = Standings()
    for each in candidates:
        found.put(each)
    return found.choose(matches, **options)


def test_without_candidates_there_is_no_choice() -> None:
    assert chosen_of([]) is None


@pytest.mark.parametrize(
    ("first", "second", "matched", "chosen"),
    [
        ({"work": 10}, {"work": 9}, 0, 1),
        ({"work": 500}, {}, 900, 0),
        ({"work": 901}, {}, 900, 1),
        ({"work": 0, "num_open": 4}, {"work": 5000, "num_open": 3}, 900, 1),
        ({"kv_usage": KV_FULL}, {"work": 5000}, 900, 1),
        ({"num_open": 8}, {"num_open": 7, "work": 9999}, 0, 1),
        ({"num_open": 5, "work": 7}, {"num_open": 6, "work": 6}, 0, 1),
        ({"num_sent": 3}, {"num_sent": 2}, 0, 1),
        ({}, {}, 0, 0),
    ],
    ids=[
        "least work",
        "the prefix is worth more than the work",
        "it is not",
        "a free place before a prefix",
        "a full pool is no place",
        "the one that would refuse comes last",
        "all must wait: least work",
        "in turn",
        "the first",
    ],
)
def test_choice(first: dict[str, Any], second: dict[str, Any], matched: int, chosen: int) -> None:
    candidates = [candidate(0, **first), candidate(1, **second)]
    for order in (candidates, candidates[::-1]):
        assert chosen_of(order, [(matched, 0b1)]) == chosen


def test_group_stays_together_while_there_is_room() -> None:
    busy, idle = candidate(0, work=900, num_open=3), candidate(1)
    assert chosen_of([busy, idle], companion=0) == 0
    full = candidate(0, work=900, num_open=4)
    assert chosen_of([full, idle], companion=0) == 1
    assert chosen_of([idle], companion=0) == 1
    assert chosen_of([full, candidate(1, work=899, num_open=4)], companion=0) == 1


def test_avoided_replica_is_chosen_only_if_there_is_no_other() -> None:
    both = [candidate(0), candidate(1, work=900)]
    assert chosen_of(both, avoids={0}) == 1
    assert chosen_of(both, avoids={0, 1}) == 0
    assert chosen_of(both, avoids={0}, companion=0) == 1


def test_replica_that_was_dropped_is_not_chosen_and_comes_back_with_what_it_is_now() -> None:
    found = Standings()
    found.put(candidate(0))
    found.put(candidate(1, work=5))
    assert found.choose(()) == 0
    found.drop(0)
    assert (found.choose(()), len(found)) == (1, 1)
    found.put(candidate(0, work=6))
    assert (found.choose(()), len(found)) == (1, 2)


CANDIDATES = st.builds(
    Candidate,
    number=st.integers(0, 99),
    work=st.integers(0, 40),
    num_open=st.integers(0, 9),
    parallel=st.integers(1, 4),
    max_open=st.integers(1, 8),
    kv_usage=st.sampled_from([0.0, 1.0]),
    num_sent=st.integers(0, 2),
    rank=st.sampled_from([0.0, 0.5]),
)
MATCHES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**100 - 1)), max_size=4)


@given(st.lists(CANDIDATES, max_size=40, unique_by=lambda c: c.number), MATCHES, st.sets(st.integers(0, 99)), st.data())
def test_choice_is_the_one_of_the_reference(
    candidates: list[Candidate], matches: Matches, avoids: set[int], data: st.DataObject
) -> None:
    companion = data.draw(st.none() | st.integers(0, 99))
    matched = {each.number: matched_by(each.number, matches) for each in candidates}
    expected = choose(candidates, matched, avoids, companion)
    assert chosen_of(candidates, matches, avoids=avoids, companion=companion) == expected


@given(st.sets(st.integers(0, 2000)))
def test_set_of_replicas_has_its_numbers(numbers: set[int]) -> None:
    assert list(numbers_in(sum(1 << number for number in numbers))) == sorted(numbers)


NUMBERS = st.integers(0, 5)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
"""Paths through a binary tree of texts."""


def beginning(path: list[int]) -> Beginning:
    keys = tuple(bytes(path[: length + 1]) for length in range(len(path)))
    return Beginning(keys, len(path) * routing.BLOCK_TOKENS + 1)


def blocks(path: list[int]) -> list[int]:
    """Two blocks of KV for each block of text."""
    return [hash((key, part)) for key in beginning(path).keys for part in range(2)]


class Routing(RuleBasedStateMachine):
    """Whatever is noted in whatever order, a decision is the one of the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.prefixes, self.standings = CachedPrefixes(lambda: self.now), Standings()
        self.prefixes._sent._max_keys = 6
        self.slow = SlowPrefixes(lambda: self.now, max_keys=6)
        self.candidates: dict[int, Candidate] = {}
        self.media: dict[int, dict[str, set[int]]] = {}
        self.serials: dict[int, int] = {}

    @rule(candidate=CANDIDATES, number=NUMBERS)
    def put(self, candidate: Candidate, number: int) -> None:
        fields = {name: getattr(candidate, name) for name in ("work", "num_open", "parallel", "max_open", "num_sent")}
        self.candidates[number] = Candidate(number=number, **fields)
        self.standings.put(self.candidates[number])

    @rule(number=NUMBERS)
    def drop(self, number: int) -> None:
        self.candidates.pop(number, None)
        self.media.pop(number, None)
        for each in (self.standings, self.prefixes, self.slow):
            each.drop(number)

    @rule(number=NUMBERS, path=PROMPTS, kind=st.sampled_from(["sent", "heard", "end"]))
    def note(self, number: int, path: list[int], kind: str) -> None:
        slow = {"sent": self.slow.note, "heard": self.slow.note_heard, "end": self.slow.note_end}
        getattr(self.prefixes, f"note_{kind}")(number, beginning(path))
        slow[kind](number, beginning(path))

    @rule(path=PROMPTS, tokens=st.integers(64, 400))
    def accept(self, path: list[int], tokens: int) -> None:
        accepted = Accepted("r", tokens, blocks=blocks(path))
        self.prefixes.note_accepted(beginning(path), accepted)
        self.slow.note_accepted(beginning(path), accepted)

    @rule(
        number=NUMBERS,
        stored=st.lists(st.tuples(st.sampled_from([POOL, MEMORY]), PROMPTS), max_size=3),
        removed=st.lists(st.tuples(st.sampled_from([POOL, MEMORY]), PROMPTS), max_size=3),
        is_whole=st.booleans(),
    )
    def say(
        self, number: int, stored: list[tuple[str, list[int]]], removed: list[tuple[str, list[int]]], is_whole: bool
    ) -> None:
        if number not in self.media:
            is_whole = True
            self.slow.sent.pop(number, None)  # the first report: what was sent before was sent to another process
        serial = self.serials[number] = self.serials.get(number, 0) + 1
        says = BlocksHeld(
            "",
            f"ledger {number}",
            serial,
            is_whole=is_whole,
            stored=[StoredBlocks(medium, blocks(path)) for medium, path in stored],
            removed=[RemovedBlocks(medium, blocks(path)[1:]) for medium, path in removed],
        )
        assert self.prefixes.note_held(number, says)
        media = self.media.setdefault(number, {POOL: set(), MEMORY: set()})
        if is_whole:
            media.update({POOL: set(), MEMORY: set()})
        for medium, path in removed:
            media[medium] -= set(blocks(path)[1:])
        for medium, path in stored:
            media[medium] |= set(blocks(path))
        self.slow.held[number] = media[POOL] | media[MEMORY]

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=NUMBERS)
    def forget(self, number: int) -> None:
        self.prefixes.forget_sent(number)
        self.slow.sent.pop(number, None)

    @invariant()
    def choices_are_equal(self) -> None:
        for path in ([0], [0, 1, 1], [1, 0, 1, 0, 1]):
            prompt = beginning(path)
            matches = self.prefixes.matches(prompt)
            matched = {number: self.slow.matched(number, prompt) for number in range(6)}
            assert {number: matched_by(number, matches) for number in range(6)} == matched
            assert self.standings.choose(matches) == choose(self.candidates.values(), matched)


class FewRemembered(Routing):
    """All ways of the fast code are taken with few replicas and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(prefix_holders, "NARROW", 1)
        self.patch.setattr(prefix_holders, "MAX_REMEMBERED", 3)
        self.patch.setattr(standings, "_FEW", 1)
        self.patch.setattr(standings, "_SORTED_ANEW", 1)

    def teardown(self) -> None:
        self.patch.undo()


class ManyRemembered(FewRemembered):
    """No key is forgotten while its replicas change."""

    def __init__(self) -> None:
        super().__init__()
        self.patch.setattr(prefix_holders, "MAX_REMEMBERED", 99)


TestRouting = Routing.TestCase
TestFewRemembered = FewRemembered.TestCase
TestManyRemembered = ManyRemembered.TestCase
for _case in (TestRouting, TestFewRemembered, TestManyRemembered):
    _case.settings = settings(deadline=None, stateful_step_count=30)
