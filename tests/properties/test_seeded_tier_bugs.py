"""The property tests of the tiers are worth something only if they notice bugs: each is put in, and must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from stoker.cache.block_file import Header
from stoker.cache.directory import BlockDirectory
from stoker.cache.host import HostTier
from stoker.core import blocks
from stoker.core.ledger import Ledger
from stoker.core.portions import Ranges, States
from stoker.core.scheduler import Scheduler
from stoker.core.sequence import Sequence
from stoker.core.slot_admission import SlotAdmission
from stoker.core.tiering import Tiering
from stoker.engine.transfers import Transfers
from tests.brief import every, examples
from tests.harness import ALL_TRAITS
from tests.properties.test_tier_invariances import FaultyDisk, check_conversations, check_lives

Patch = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Patch] = {}
DISK_BUGS: dict[str, Patch] = {}
SEEDS = range(8)
RANGES, STATES, APART = ALL_TRAITS[0], ALL_TRAITS[3], ALL_TRAITS[-1]


def bug(patch: Patch) -> Patch:
    BUGS[patch.__name__] = patch
    return patch


def disk_bug(patch: Patch) -> Patch:
    DISK_BUGS[patch.__name__] = patch
    return patch


@bug
def a_key_does_not_depend_on_what_comes_before_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    original = blocks._digest
    monkeypatch.setattr(blocks, "_digest", lambda before, entries: original(b"", entries))


@bug
def a_key_does_not_depend_on_the_whole_block(monkeypatch: pytest.MonkeyPatch) -> None:
    original = blocks._digest
    monkeypatch.setattr(blocks, "_digest", lambda before, entries: original(before, list(entries)[:8]))


@bug
def another_block_is_exported_than_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ranges.exports

    def exports(self: Ranges, slot, chain, length):
        for transfer in original(self, slot, chain, length):
            first = max(0, transfer.start - 32)
            yield replace(transfer, start=first, end=first + 32)

    monkeypatch.setattr(Ranges, "exports", exports)


@bug
def a_retained_slot_is_exported_under_the_names_of_who_was_in_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tiering.retain
    first: WeakKeyDictionary[Tiering, dict[int, Any]] = WeakKeyDictionary()

    def retain(self: Tiering, slot, sequence):
        original(self, slot, sequence)
        if slot in self._retained:
            self._retained[slot] = first.setdefault(self, {}).setdefault(slot, self._retained[slot])

    monkeypatch.setattr(Tiering, "retain", retain)


@bug
def the_last_entry_is_restored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tiering.restorable
    monkeypatch.setattr(
        Tiering, "restorable", lambda self, sequence, resident, limit: original(self, sequence, resident, limit + 1)
    )


@bug
def what_is_resident_is_not_cut_where_a_block_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranges, "start_of", lambda self, resident: resident)


@bug
def a_state_is_exported_later_than_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(States, "next_stop", lambda self, chain, length: None)
    original = States.exports

    def exports(self: States, slot, chain, length):
        passed = max((wanted for wanted in chain.wanted if wanted < length), default=None)
        if passed is not None:
            yield from (replace(t, end=length) for t in original(self, slot, chain, passed))

    monkeypatch.setattr(States, "exports", exports)


@bug
def a_block_that_is_missing_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.core.portions._num_leading", lambda keys, is_there: len(keys))
    monkeypatch.setattr(Transfers, "_import", lambda self, transfer: True)


@bug
def an_import_that_failed_counts_as_made(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transfers._import

    def import_(self: Transfers, transfer):
        if transfer.start == 64:
            return True
        return original(self, transfer)

    monkeypatch.setattr(Transfers, "_import", import_)


@bug
def a_withdrawn_import_stays_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transfers._import
    monkeypatch.setattr(Transfers, "_import", lambda self, transfer: transfer.start < 64 and original(self, transfer))
    monkeypatch.setattr(Ledger, "withdraw", lambda self, slot, length: None)


@bug
def imported_cells_are_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Ledger.promise
    monkeypatch.setattr(
        Ledger, "promise", lambda self, slot, entries: original(self, slot, [] if type(entries) is list else entries)
    )


@bug
def private_prompts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_reuse(self: SlotAdmission, sequence):
        found = original(self, sequence)
        assert sequence.request.cache_prompt or found.goal == 0, "a private prompt reads"
        return found

    original = SlotAdmission._find_reuse
    monkeypatch.setattr(SlotAdmission, "_find_reuse", find_reuse)
    monkeypatch.setattr(Sequence, "cache_key", property(lambda self: None))


@bug
def memory_gives_another_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: HostTier, key):
        newest = next(reversed(self._held), None)
        return None if key not in self._held or newest is None else (self._held[newest].state, False)

    monkeypatch.setattr(HostTier, "take", take)


@bug
def the_stop_for_a_state_is_overlooked_in_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scheduler._note_import

    def note_import(self: Scheduler, slot):
        original(self, slot)
        self._population.running[slot].num_computed += 1

    monkeypatch.setattr(Scheduler, "_note_import", note_import)


def altered(content: bytes) -> bytes:
    """KV of the scripted backend that looks as good, and is not what was computed."""
    last_digit = content.rindex(b")])") - 1
    return content[:last_digit] + bytes([content[last_digit] ^ 1]) + content[last_digit + 1 :]


@disk_bug
def what_waits_to_be_written_is_overwritten_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    original = HostTier.peek

    def peek(self: HostTier, key):
        state = original(self, key)
        return None if state is None else altered(bytes(state))

    monkeypatch.setattr(HostTier, "peek", peek)


@disk_bug
def damage_on_the_disk_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: FaultyDisk, fingerprint, key, state):
        num_bytes = BlockDirectory.write(self, fingerprint, key, state)
        path = Path(self._path(fingerprint, key))
        path.write_bytes(altered(path.read_bytes()))
        return num_bytes

    monkeypatch.setattr(FaultyDisk, "write", write)
    monkeypatch.setattr(Header, "check_content", lambda self, state: None)


def is_caught(seeds: Iterable[int] = SEEDS) -> bool:
    try:
        for seed in seeds:
            for traits in (RANGES, STATES, APART):
                check_conversations(seed, traits)
    except (AssertionError, LookupError, ValueError, TypeError):
        return True
    return False


def is_caught_over_lives(root: Path) -> bool:
    try:
        for seed in SEEDS:
            check_lives(seed, root / str(seed))
    except AssertionError:
        return True
    return False


def test_without_a_bug_nothing_is_caught() -> None:
    assert not is_caught(SEEDS[: examples(len(SEEDS))])


@pytest.mark.parametrize("name", every(3, BUGS))
def test_bug_in_the_tiers_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    monkeypatch.setattr("tests.harness.MAX_STEPS", 2000)
    assert is_caught()


@pytest.mark.parametrize("name", DISK_BUGS)
def test_bug_of_the_disk_is_caught(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without one, nothing is: see `test_the_random_lives_do_read_and_do_fail`."""
    DISK_BUGS[name](monkeypatch)
    assert is_caught_over_lives(tmp_path)
