from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.prefix_tree import PrefixTree, common_prefix


def longest_prefix(contents: dict[int, list[int]], entries: list[int]) -> int:
    return max((common_prefix(held, entries) for held in contents.values()), default=0)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_behaves_like_one_list_per_slot(seed: int) -> None:
    """Any order of insert, extend, copy, truncate and remove, against plain lists whose cells are objects."""
    rng = random.Random(seed)
    tree, cells = PrefixTree(), dict[int, list[tuple[int, object]]]()
    for _ in range(60):
        action = rng.choice(["insert", "extend", "extend", "copy", "truncate", "remove"])
        free = [slot for slot in range(6) if slot not in cells]
        if action == "insert" and free:
            tree.insert(free[0])
            cells[free[0]] = []
        elif not cells:
            continue
        elif action == "extend":
            slot = rng.choice(list(cells))
            added = [rng.randrange(3) for _ in range(rng.randrange(5))]
            tree.extend(slot, added)
            cells[slot] = cells[slot] + [(entry, object()) for entry in added]
        elif action == "copy" and free:
            source = rng.choice(list(cells))
            length = rng.randrange(len(cells[source]) + 1)
            tree.insert(free[0])
            tree.copy(source, free[0], length)
            cells[free[0]] = cells[source][:length]
        elif action == "truncate":
            slot = rng.choice(list(cells))
            length = rng.randrange(len(cells[slot]) + 1)
            tree.truncate(slot, length)
            cells[slot] = cells[slot][:length]
        elif action == "remove":
            slot = rng.choice(list(cells))
            tree.remove(slot)
            del cells[slot]
        tree.check_integrity()
        contents = {slot: [entry for entry, _ in held] for slot, held in cells.items()}
        assert {slot: tree.entries(slot) for slot in cells} == contents
        assert tree.num_distinct == len({id(cell) for held in cells.values() for _, cell in held})
        assert tree.num_total == sum(len(held) for held in cells.values())
        probe = [rng.randrange(3) for _ in range(8)]
        match = tree.match(probe)
        assert match.length == longest_prefix(contents, probe)
        for slot in tree.slots_through(match):
            assert contents[slot][: match.length] == probe[: match.length]
        for slot, held in cells.items():
            assert tree.overlap(slot, probe) == common_prefix(contents[slot], probe)
            others = {id(cell) for other, cs in cells.items() if other != slot for _, cell in cs}
            assert tree.num_private(slot) == sum(id(cell) not in others for _, cell in held)


def test_branches_that_come_and_go_leave_no_trace() -> None:
    """One long path, of which ever other lengths are shared for a while, stays one node."""
    tree, entries = PrefixTree(), list(range(3000))
    tree.insert(0)
    tree.extend(0, entries)
    for length in range(1, 3000):
        tree.insert(1)
        tree.copy(0, 1, length)
        tree.extend(1, [-1])
        tree.remove(1)
        assert sum(1 for _ in tree._tips[0].path()) == 1
    assert tree.match(entries).length == 3000


def test_prefixes_of_prefixes_may_be_any_number() -> None:
    tree, entries = PrefixTree(), list(range(2000))
    tree.insert(0)
    tree.extend(0, entries)
    for length in range(1, 2000):
        tree.insert(length)
        tree.copy(0, length, length)
    assert tree.match(entries).length == 2000
    tree.check_integrity()


def test_keys_never_meet() -> None:
    tree = PrefixTree()
    tree.insert(0, key="private")
    tree.extend(0, [1, 2, 3])
    assert tree.match([1, 2, 3]).length == 0
    assert tree.match([1, 2, 3], key="private").length == 3


def test_common_prefix_of_long_runs() -> None:
    run = list(range(5000))
    for at in (0, 1, 63, 64, 65, 191, 192, 4999):
        assert common_prefix(run, [*run[:at], -1, *run[at + 1 :]]) == at
    assert common_prefix(run, run) == 5000
    assert common_prefix(run[10:], run, start=10) == 4990
