"""Where only whole slots can be copied, prompts go on at checkpoints; where layers have windows, these have a pool."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import EOS, scripted_info
from stoker.core import kv_cache
from stoker.core.kv_cache import KVCache
from stoker.core.ledger import Ledger
from stoker.core.model_info import CacheTraits, ModelInfo, WindowPool
from stoker.core.prefix_tree import PrefixTree
from stoker.core.window_cells import WindowCells
from stoker.errors import BackendError
from tests.harness import Loop, make_request

WHOLE = CacheTraits(can_truncate=False, can_copy=True, copies_whole=True, shares_cells=True)
SYSTEM = [*range(100), EOS]
FIRST = [*SYSTEM, *range(200, 240), *range(100), EOS]
"""A system prompt, and a message of 141 entries."""


def windowed(max_batch_tokens: int = 256) -> ModelInfo:
    info = scripted_info(traits=WHOLE, max_batch_tokens=max_batch_tokens)
    return replace(info, windows=WindowPool(capacity=4 * 20 + info.max_batch_tokens + 100, reach=20))


def cached(loop: Loop, name: str, prompt: list[int]) -> int:
    """How much of a prompt was found in the pool."""
    before = loop.scheduler.num_resident_tokens
    loop.add(make_request(name, prompt, 4))
    loop.run()
    return loop.scheduler.num_resident_tokens - before


def held_by(kv: KVCache, entries: list[int]) -> int:
    """A running slot that holds these, as far as they are not reused."""
    slot = kv.open(kv.find_reuse(entries, len(entries)))
    kv.ledger.promise(slot, entries[kv.tree.length(slot) :])
    kv.ledger.commit()
    return slot


@pytest.mark.parametrize("info", [scripted_info(traits=WHOLE), windowed()])
def test_a_prompt_goes_on_at_the_border_of_a_message(info: ModelInfo) -> None:
    loop = Loop(info)
    assert cached(loop, "first", FIRST) == 0
    assert cached(loop, "another question", [*SYSTEM, 7, 8, 9]) == len(SYSTEM) - 1  # without its end
    assert cached(loop, "the same once more", FIRST) >= len(FIRST) - 33


@pytest.mark.parametrize("info", [scripted_info(traits=WHOLE), windowed()])
def test_the_second_prompt_that_begins_so_leaves_a_checkpoint_where_it_parts(info: ModelInfo) -> None:
    """A template may end no message between a system prompt and a question."""
    loop, common = Loop(info), [*range(100), *range(50)]
    found = [cached(loop, f"r{index}", [*common, *[200 + index] * 40]) for index in range(4)]
    assert found == [0, 0, len(common), len(common)]


def test_a_conversation_goes_on_where_its_answer_ends() -> None:
    loop = Loop(windowed())
    cached(loop, "first", FIRST)
    answer = loop.tokens["first"]
    # The last token of an answer is not computed: nothing has been asked of it.
    assert cached(loop, "second", [*FIRST, *answer, 5, 6]) == len(FIRST) + len(answer) - 1


def test_requests_that_come_together_take_a_common_prompt_from_one() -> None:
    loop = Loop(windowed())
    for name in "abcd":
        loop.add(make_request(name, [*SYSTEM, *[ord(name)] * 20], 4))
    loop.run()
    assert loop.backend.num_computed < 2 * len(SYSTEM) + 4 * 30


def test_a_checkpoint_takes_no_cells_of_its_own_and_leaves_after_what_goes_on_from_it() -> None:
    kv = KVCache(scripted_info(traits=WHOLE, num_slots=8, kv_tokens=300))
    slot = held_by(kv, SYSTEM)
    kv.leave_checkpoint(slot)
    kv.leave_checkpoint(slot)
    assert (kv.ledger.held, len(kv.retained)) == (len(SYSTEM), 1)
    kv.ledger.promise(slot, [1] * 50)
    kv.ledger.commit()
    kv.close(slot, retain=True)
    other = held_by(kv, [9] * 40)
    kv.make_room(300 - len(SYSTEM) - 40)
    assert kv.find_reuse(SYSTEM, len(SYSTEM)).length == len(SYSTEM)
    kv.make_room(300 - 40)
    assert kv.find_reuse(SYSTEM, len(SYSTEM)).length == 0
    kv.close(other, retain=False)
    kv.check_integrity()


def test_a_failed_step_gives_up_the_checkpoints_that_it_was_to_make() -> None:
    failing = {2}

    def fail(batch: object) -> None:
        if getattr(batch, "step_id", 0) in failing:
            raise BackendError("injected")

    loop = Loop(windowed(max_batch_tokens=101), before_forward=fail)
    loop.add(make_request("a", FIRST, 4))
    loop.run()
    alone = Loop(windowed())
    alone.add(make_request("a", FIRST, 4))
    assert loop.tokens == alone.run()
    assert cached(loop, "again", [*SYSTEM, 1, 2]) in (0, len(SYSTEM) - 1)


def test_what_was_computed_for_one_request_alone_leaves_no_checkpoint() -> None:
    loop = Loop(windowed())
    loop.add(make_request("a", FIRST, 4, cache_prompt=False))
    loop.run()
    assert len(loop.scheduler.kv.retained) == 0


@pytest.mark.parametrize("num_shared", [1, kv_cache.MIN_USE - 1, kv_cache.MIN_USE])
def test_a_conversation_is_not_kept_because_a_prompt_begins_like_it(num_shared: int) -> None:
    kv = KVCache(scripted_info(num_slots=4))
    for number in (0, 100):
        kv.close(held_by(kv, [*range(num_shared), *range(number + 50, number + 90)]), retain=True)
    first, last = kv.retained
    reuse = kv.find_reuse([*range(num_shared), 250, 251], num_shared)
    assert (reuse.source in (first, last), reuse.length) == (True, num_shared)
    kv.open(replace(reuse, source=first))
    assert list(kv.retained) == ([last, first] if num_shared >= kv_cache.MIN_USE else [first, last])


def test_cells_of_windows_are_counted_once_however_many_slots_end_near_them() -> None:
    tree = PrefixTree()
    cells = WindowCells(WindowPool(capacity=60, reach=20), tree)
    tree.insert(0)
    tree.extend(0, list(range(50)))
    assert cells.held == 20
    tree.insert(1)
    tree.copy(0, 1, 50)
    tree.extend(1, list(range(8)))
    assert cells.held == 28  # 30 … 49 of both, and 8 more
    tree.extend(1, list(range(30)))
    assert cells.held == 40
    tree.remove(0)
    assert cells.held == 20


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_entries_near_the_end_of_some_slot(seed: int, reach: int) -> None:
    """Against sets of numbers, one for each entry that was ever added."""
    rng, tree, expected, numbers = random.Random(seed), PrefixTree(), dict[int, list[int]](), count()
    for slot in range(12):
        tree.insert(slot)
        expected[slot] = []
        source = rng.choice(list(expected))
        if source != slot and expected[source] and rng.random() < 0.7:
            length = rng.choice([len(expected[source]), rng.randrange(1, len(expected[source]) + 1)])
            tree.copy(source, slot, length)
            expected[slot] = expected[source][:length]
        for grown in (slot, rng.choice(list(expected))):
            added = [next(numbers) for _ in range(rng.randrange(30))]
            tree.extend(grown, added)
            expected[grown] = expected[grown] + added
        if rng.random() < 0.2:
            gone = rng.choice(list(expected))
            tree.remove(gone)
            del expected[gone]
        assert tree.num_within(reach) == len({number for held in expected.values() for number in held[-reach:]})


def test_room_in_windows_is_made_by_evicting_what_has_finished() -> None:
    kv = KVCache(replace(scripted_info(traits=WHOLE, max_batch_tokens=40), windows=WindowPool(capacity=80, reach=20)))
    for number in (0, 50, 100):
        kv.close(held_by(kv, list(range(number, number + 40))), retain=True)
        kv.check_integrity()
        kv.make_room(40)
    assert len(kv.retained) == 2
    assert kv.num_evicted_slots == 1


def test_an_import_takes_no_more_cells_of_windows_than_it_will_hold() -> None:
    info = replace(scripted_info(traits=WHOLE), windows=WindowPool(capacity=30, reach=20))
    kv = KVCache(info)
    slot = kv.open(kv.find_reuse([], 0))
    kv.ledger.promise(slot, [1] * 100, is_import=True)
    windows = kv.ledger.windows
    assert windows is not None
    assert windows.num_promised == 20
    kv.ledger.withdraw(slot, 0)
    assert (windows.num_promised, kv.ledger.num_promised) == (0, 0)


def test_promises_beyond_the_windows_are_noticed() -> None:
    tree = PrefixTree()
    ledger = partial(Ledger, 1000, tree, shares_cells=True)(
        windows=WindowCells(WindowPool(capacity=30, reach=20), tree)
    )
    tree.insert(0)
    ledger.promise(0, [1] * 31)
    with pytest.raises(AssertionError, match="windows"):
        ledger.commit()
