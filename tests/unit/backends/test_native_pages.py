"""The page ledger against a model that keeps every cell by itself: contents, sharing, and that nothing leaks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.native.pages import PAGE_TOKENS, PageLedger, num_pages, pages_for


@dataclass
class Memory:
    """What the cells of every page hold, and what every slot should hold: a number per position, counted up."""

    ledger: PageLedger
    kv_tokens: int
    cells: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    expected: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    next_value: int = 0
    window: int = 0
    """How much of a slot is needed; 0 = all."""

    @property
    def num_distinct(self) -> int:
        return len({value for values in self.expected.values() for value in values})

    def read(self, slot: int) -> list[int]:
        """What is in a slot, from the first position on that is still needed."""
        length = self.ledger.length(slot)
        places = [divmod(position, PAGE_TOKENS) for position in range(self.first_needed(slot), length)]
        return [self.cells[int(self.ledger.tables[slot, index]), at] for index, at in places]

    def write(self, slot: int, count: int) -> None:
        values = self.expected.setdefault(slot, [])
        copied = self.ledger.prepare(slot, len(values) + count)
        if copied is not None:
            self.cells |= {
                (copied[1], at): self.cells[copied[0], at] for at in range(PAGE_TOKENS) if (copied[0], at) in self.cells
            }
        for _ in range(count):
            index, at = divmod(len(values), PAGE_TOKENS)
            self.cells[int(self.ledger.tables[slot, index]), at] = self.next_value
            values.append(self.next_value)
            self.next_value += 1
        self.ledger.commit(slot, len(values))

    def copy(self, source: int, target: int, length: int) -> None:
        self.ledger.copy_prefix(source, target, length)
        self.expected[target] = self.expected[source][:length]

    def truncate(self, slot: int, length: int) -> None:
        self.ledger.truncate(slot, length)
        self.expected[slot] = self.expected.get(slot, [])[:length]

    def check(self) -> None:
        self.ledger.check_integrity()
        for slot, values in self.expected.items():
            assert self.read(slot) == values[self.first_needed(slot) :]

    def first_needed(self, slot: int) -> int:
        return max(0, self.ledger.length(slot) - self.window + 1) if self.window else 0


def make(kv_tokens: int, num_slots: int, max_tokens: int = 400) -> Memory:
    return Memory(PageLedger(kv_tokens=kv_tokens, num_slots=num_slots, max_tokens=max_tokens), kv_tokens)


def random_step(rng: random.Random, memory: Memory, num_slots: int, max_tokens: int) -> None:
    slot = rng.randrange(num_slots)
    held = len(memory.expected.get(slot, []))
    kind = rng.random()
    if kind < 0.25 and held:
        memory.truncate(slot, rng.choice([0, rng.randrange(held), held - held % PAGE_TOKENS]))
    elif kind < 0.5 and not held:
        source = rng.randrange(num_slots)
        if source != slot and memory.expected.get(source):
            length = len(memory.expected[source])
            memory.copy(source, slot, rng.choice([length, rng.randrange(length + 1)]))
    else:
        room = min(memory.kv_tokens - memory.num_distinct, max_tokens - held)
        count = min(room, rng.choice([1, 1, PAGE_TOKENS, rng.randrange(1, 100)]))
        if count > 0:
            memory.write(slot, count)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 9]), st.sampled_from([32, 50, 200, 700]))
def test_every_slot_reads_what_it_wrote_whoever_shares(seed: int, num_slots: int, kv_tokens: int) -> None:
    rng = random.Random(seed)
    memory = make(kv_tokens, num_slots)
    for _ in range(60):
        random_step(rng, memory, num_slots, 400)
    memory.check()
    for slot in range(num_slots):
        memory.truncate(slot, 0)
    memory.ledger.check_integrity()
    assert memory.ledger.num_used == 0


def test_ten_thousand_sequences_leave_no_page_behind() -> None:
    rng = random.Random(3)
    ledger = PageLedger(kv_tokens=600, num_slots=6, max_tokens=200)
    for _ in range(10_000):
        slot = rng.randrange(6)
        ledger.truncate(slot, 0)
        source = rng.choice([other for other in range(6) if other != slot])
        if rng.random() < 0.5:
            ledger.copy_prefix(source, slot, rng.randrange(min(ledger.length(source), 60) + 1))
        end = ledger.length(slot) + rng.randrange(1, 40)
        ledger.prepare(slot, end)
        if rng.random() < 0.9:
            ledger.commit(slot, end)
        else:
            ledger.abandon(slot)
    ledger.check_integrity()
    for slot in range(6):
        ledger.truncate(slot, 0)
    assert ledger.num_used == 0


def test_pages_suffice_when_everybody_leaves_everybody_in_the_same_page() -> None:
    """The worst way to spend a pool: copies that part after each token, each with a page nearly to itself."""
    num_slots = PAGE_TOKENS
    memory = make(PAGE_TOKENS * 2, num_slots)
    memory.write(0, PAGE_TOKENS - 1)
    for slot in range(1, num_slots):
        memory.copy(0, slot, slot)
        memory.write(slot, 1)
    memory.check()


def test_a_copy_costs_nothing_until_it_parts() -> None:
    memory = make(500, 3)
    memory.write(0, 70)
    used = memory.ledger.num_used
    memory.copy(0, 1, 60)
    memory.copy(0, 2, 64)
    assert memory.ledger.num_used == used == 3
    memory.write(1, 1)
    assert memory.ledger.num_used == used + 1
    memory.write(2, 1)
    assert memory.ledger.num_used == used + 2  # parted at a border: a new page, nothing copied
    memory.check()


def test_the_last_owner_of_a_page_writes_in_place() -> None:
    ledger = PageLedger(kv_tokens=100, num_slots=2, max_tokens=100)
    ledger.prepare(0, 40)
    ledger.commit(0, 40)
    ledger.copy_prefix(0, 1, 40)
    assert ledger.prepare(1, 41) == (1, 2)
    assert ledger.prepare(0, 41) is None


def test_what_was_prepared_can_be_given_back() -> None:
    ledger = PageLedger(kv_tokens=200, num_slots=2, max_tokens=200)
    ledger.prepare(0, 40)
    ledger.commit(0, 40)
    ledger.copy_prefix(0, 1, 40)
    ledger.prepare(1, 130)
    ledger.abandon(1)
    ledger.check_integrity()
    assert ledger.length(1) == 40
    assert ledger.num_used == 3  # the shared page was copied, and stays
    ledger.prepare(1, 130)
    ledger.commit(1, 130)
    ledger.check_integrity()


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2)])
def test_pages_are_rounded_up(tokens: int, pages: int) -> None:
    assert pages_for(tokens) == pages
    assert num_pages(kv_tokens=tokens, num_slots=3) == pages + 6


def test_misuse_is_noticed() -> None:
    ledger = PageLedger(kv_tokens=64, num_slots=2, max_tokens=64)
    ledger.prepare(0, 10)
    ledger.commit(0, 10)
    with pytest.raises(AssertionError, match="slot 0 is not empty"):
        ledger.copy_prefix(1, 0, 0)
    with pytest.raises(AssertionError, match="slot 0 has no 11 positions"):
        ledger.truncate(0, 11)
    with pytest.raises(AssertionError, match="cannot grow from 10 to 65"):
        ledger.prepare(0, 65)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 4, 9]), st.sampled_from([2, 20, 33, 100]))
def test_a_slot_with_a_window_keeps_what_is_seen_again_and_no_page_more(seed: int, num_slots: int, window: int) -> None:
    """Slots grow, are copied whole, and lose the end of what they grew by last, as drafts do."""
    rng, tail = random.Random(seed), 15
    keep = window - 1 + tail
    reach = keep + PAGE_TOKENS - 1
    num_cells = num_slots * reach + 60
    memory = Memory(PageLedger(kv_tokens=num_cells, num_slots=num_slots, max_tokens=800, keep=keep), num_cells)
    memory.window = window
    for _ in range(80):
        slot, source = rng.randrange(num_slots), rng.randrange(num_slots)
        held = len(memory.expected.get(slot, []))
        kind = rng.random()
        if held > 700 or (kind < 0.1 and held):
            memory.truncate(slot, 0)
        elif kind < 0.3 and not held and source != slot and memory.expected.get(source):
            memory.copy(source, slot, len(memory.expected[source]))
        elif kind < 0.6:
            memory.write(slot, rng.randrange(1, 61))
        else:
            num_drafted = rng.randrange(1, tail + 1)
            memory.write(slot, 1 + num_drafted)
            memory.truncate(slot, held + 1 + rng.randrange(num_drafted))
        memory.check()
        assert all(np.count_nonzero(row >= 0) <= reach // PAGE_TOKENS + 2 for row in memory.ledger.tables)
    for slot in range(num_slots):
        memory.truncate(slot, 0)
    assert memory.ledger.num_used == 0


def test_what_comes_from_outside_takes_no_page_before_its_window() -> None:
    ledger = PageLedger(kv_tokens=200, num_slots=2, max_tokens=400, keep=50)
    ledger.skip(0, 300 - 49)
    ledger.prepare(0, 300)
    assert ledger.num_used == 300 // PAGE_TOKENS + 1 - 251 // PAGE_TOKENS
    ledger.abandon(0)
    assert ledger.num_used == 0
    ledger.skip(0, 300 - 49)
    ledger.prepare(0, 300)
    ledger.commit(0, 300)
    ledger.check_integrity()
    with pytest.raises(AssertionError, match="a part"):
        ledger.copy_prefix(0, 1, 299)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=12))
def test_free_pages_are_told_as_ranges_and_the_lowest_is_taken_next(steps: list[tuple[int, int]]) -> None:
    ledger = PageLedger(kv_tokens=400, num_slots=4, max_tokens=100)
    for slot, length in steps:
        if length > ledger.length(slot):
            ledger.prepare(slot, length)
            ledger.commit(slot, length)
        else:
            ledger.truncate(slot, length)
        runs = ledger.free_runs()
        free = [page for first, last in runs for page in range(first, last)]
        assert sorted(ledger._free) == free
        assert all(end < first for (_, end), (first, _) in pairwise(runs)), "runs touch"
        assert not free or ledger._free[-1] == free[0]
        ledger.check_integrity()
