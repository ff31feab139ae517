"""What leaves for the tiers and what comes back, seen from the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from stoker.backends.scripted import IM_END, scripted_info
from stoker.cache.store import KVStore
from stoker.core.batch import AdapterSet
from stoker.core.blocks import BLOCK_ENTRIES, Chain, root_key
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.sequence import CacheKey, FinishReason
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.errors import BackendError
from tests.harness import ALL_TRAITS, Loop, answer_alone, make_request, prompt_step

SYSTEM = [index % 250 for index in range(160)]
CANNOT_CUT = CacheTraits(can_truncate=False, can_copy=False, shares_cells=False, can_export=True)
APART = CacheTraits(
    can_truncate=False, can_copy=True, copies_whole=True, shares_cells=True, can_export=True, exports_apart=True
)


def info(kv_tokens: int = 400, num_slots: int = 16, **fields: object) -> ModelInfo:
    return replace(scripted_info(context_size=400, kv_tokens=kv_tokens, num_slots=num_slots), **fields)  # type: ignore[arg-type]


def tiered(store: KVStore | None = None, **fields: object) -> Loop:
    return Loop(info(**fields), max_running=2, store=store or KVStore(10**7))  # type: ignore[arg-type]


def answer(loop: Loop, request_id: str, prompt: list[int], **fields: object) -> int:
    """Runs one request to its end; returns how many tokens of its prompt were not computed."""
    request = make_request(request_id, prompt, 2, **fields)
    loop.add(request)
    sequence = loop.scheduler.sequence(request_id)
    loop.run()
    assert loop.tokens[request_id] == answer_alone(request, 400, loop.info.kv_tokens)
    return sequence.num_cached


def flood(loop: Loop) -> None:
    """Fills the pool with something else."""
    start = len(loop.tokens)
    answer(loop, f"flood{start}", [(start + index * 7) % 250 for index in range(390)], cache_prompt=False)


class SlowTiers(KVStore):
    """Has everything on a disk, from which it comes when the test says so."""

    def __init__(self) -> None:
        super().__init__(10**7)
        self.on_disk: dict[bytes, KVBytes] = {}
        self.wanted: set[bytes] = set()

    @property
    def is_durable(self) -> bool:
        return True

    def holds(self, key: bytes) -> bool:
        return key in self.on_disk or super().holds(key)

    def fetch(self, keys: Sequence[bytes]) -> None:
        self.wanted.update(keys)

    def is_coming(self, keys: Iterable[bytes]) -> bool:
        return not self.wanted.isdisjoint(keys)

    def forget_memory(self) -> None:
        for key in list(self._host._held):
            self.on_disk[key] = self._host._held[key].state
            self.discard(key)

    def arrive(self, *, is_lost: bool = False) -> None:
        for key in self.wanted:
            if not is_lost:
                self.put(key, self.on_disk[key])
        self.wanted.clear()


class SuddenTiers(SlowTiers):
    """What was wanted arrives just behind the first look at what is there."""

    def is_ready(self, key: bytes) -> bool:
        was_ready = super().is_ready(key)
        if key in self.wanted:
            self.arrive()
        return was_ready


class LateTiers(KVStore):
    """Become durable, and hungry, when the test says so."""

    def __init__(self) -> None:
        super().__init__(10**7)
        self.is_late = True

    @property
    def is_durable(self) -> bool:
        return not self.is_late


def test_a_conversation_that_left_the_pool_comes_back() -> None:
    loop = tiered()
    answer(loop, "first", SYSTEM)
    flood(loop)
    assert loop.scheduler.kv.tree.match(SYSTEM, CacheKey()).length < BLOCK_ENTRIES
    before = loop.backend.num_computed
    assert answer(loop, "again", [*SYSTEM, 7]) == len(SYSTEM)
    assert loop.backend.num_computed - before == 2


def test_what_is_resident_is_not_brought_in_again() -> None:
    loop = tiered()
    answer(loop, "first", SYSTEM[:100])
    flood(loop)
    answer(loop, "part", SYSTEM[:100])
    assert loop.transfers is not None
    num_restored = loop.transfers.counters().restored_tokens
    answer(loop, "again", [*SYSTEM[:100], 7])
    assert loop.transfers.counters().restored_tokens == num_restored > 0


def test_a_resident_beginning_is_continued_from_the_tiers() -> None:
    loop = tiered(kv_tokens=400)
    answer(loop, "long", SYSTEM)
    flood(loop)
    answer(loop, "short", SYSTEM[:70])
    assert loop.transfers is not None
    before = loop.transfers.counters().restored_tokens
    assert answer(loop, "again", [*SYSTEM, 7]) == len(SYSTEM)
    assert 0 < loop.transfers.counters().restored_tokens - before <= len(SYSTEM) - 64


def test_nothing_is_exported_while_the_pool_has_room_unless_it_would_outlive_the_process() -> None:
    loop = tiered(kv_tokens=4000)
    answer(loop, "first", SYSTEM)
    assert loop.store is not None
    assert loop.store.counters().ram_blocks == 0
    durable = tiered(SlowTiers(), kv_tokens=4000)
    answer(durable, "first", SYSTEM)
    assert durable.store is not None
    assert durable.transfers is not None
    while durable.transfers.export():
        pass
    assert durable.store.counters().ram_blocks >= 4


def test_what_need_not_leave_soon_waits_while_somebody_computes() -> None:
    loop = tiered(SlowTiers(), kv_tokens=4000)
    answer(loop, "first", SYSTEM)
    loop.add(make_request("next", [1] * 40, 2))
    assert loop.scheduler.exports() == []
    loop.scheduler.tiering.earn(1.0)
    assert loop.scheduler.exports(), "but not for ever"
    loop.scheduler.tiering.observe_export(32, 1.0)
    loop.scheduler.tiering.earn(0.1)
    assert loop.scheduler.exports() == []


def test_who_is_paused_does_not_compute() -> None:
    loop = tiered(SlowTiers(), kv_tokens=4000)
    answer(loop, "first", SYSTEM)
    loop.add(make_request("slow reader", [1] * 40, 2))
    assert loop.scheduler.exports() == []
    loop.scheduler.pause("slow reader")
    assert loop.scheduler.exports()


def test_what_has_to_leave_soon_does_not_wait() -> None:
    loop = tiered(SlowTiers(), kv_tokens=len(SYSTEM) + 60)
    answer(loop, "first", SYSTEM)
    loop.add(make_request("next", [1] * 40, 2))
    assert loop.scheduler.exports()


def test_a_conversation_that_lost_its_slot_although_there_were_cells_comes_back() -> None:
    loop = tiered(kv_tokens=4000, num_slots=4)
    for index in range(8):
        answer(loop, f"talk {index}", [(entry * (index + 3)) % 250 for entry in range(130)])
    assert loop.scheduler.kv.ledger.free * 2 > loop.scheduler.kv.ledger.capacity
    assert answer(loop, "again", [(entry * 3) % 250 for entry in range(130)]) == 129


def test_what_arrives_while_a_place_is_looked_for_is_not_missed() -> None:
    store = SuddenTiers()
    loop = tiered(store)
    answer(loop, "first", SYSTEM)
    flood(loop)
    store.forget_memory()
    loop.add(make_request("again", [*SYSTEM, 7], 2))
    sequence = loop.scheduler.sequence("again")
    assert loop.scheduler.schedule() is None, "it was coming"
    store.arrive()
    loop.run()
    assert sequence.num_cached == len(SYSTEM)


def test_two_conversations_with_one_system_prompt_keep_it_once() -> None:
    loop = tiered(SlowTiers())
    answer(loop, "a", [*SYSTEM, *[1] * 40])
    flood(loop)
    answer(loop, "b", [*SYSTEM, *[2] * 40])
    flood(loop)
    assert loop.store is not None
    assert loop.store.counters().ram_blocks == 5 + 2 * (1 + 2), "each has a block and two tails of its own"


def test_a_prompt_once_more_is_restored_but_for_its_last_token() -> None:
    loop = tiered()
    for length in (BLOCK_ENTRIES + 2, 90, 96, 97, 98, 127, 128, 129):
        prompt = [(length + index) % 250 for index in range(length)]
        answer(loop, f"first {length}", prompt)
        flood(loop)
        assert answer(loop, f"again {length}", prompt) == length - 1


def test_a_conversation_goes_on_where_it_ended_also_within_a_block() -> None:
    loop = tiered()
    prompt = SYSTEM[:75]
    answer(loop, "first", prompt)
    flood(loop)
    # The last token that was sampled was never computed.
    told = [*prompt, *loop.tokens["first"]]
    assert answer(loop, "next turn", [*told, 7, 8, 9]) == len(told) - 1
    assert answer(loop, "other turn", [*prompt, 9, 8, 7]) == len(prompt)


def test_what_is_in_a_slot_is_never_given_away_under_the_name_of_what_was_in_it() -> None:
    tiers = LateTiers()
    loop = tiered(tiers, kv_tokens=4000, num_slots=2)
    answer(loop, "public", SYSTEM)
    scheduler = loop.scheduler
    (slot,) = scheduler.kv.retained
    scheduler.slots.erase(slot)
    loop.add(make_request("private", [9] * 150, 20, cache_prompt=False))
    loop.step()
    assert scheduler.sequence("private").slot == slot
    scheduler.pause("private")
    tiers.is_late = False
    assert scheduler.tiering.exports([], 1.0) == []
    scheduler.resume("private")
    loop.run()


@pytest.mark.parametrize("adapters", [(), (("poet", 0.5),)])
def test_what_was_put_into_a_slot_from_outside_is_kept_under_its_own_name(adapters: AdapterSet) -> None:
    loop = tiered(SlowTiers(), num_slots=2)
    answer(loop, "first", SYSTEM)
    scheduler = loop.scheduler
    (slot,) = scheduler.kv.retained
    entries = tuple(range(100, 200))
    scheduler.slots.vacate_for(slot, entries, b"")
    scheduler.slots.adopt(slot, entries, adapters)
    expected = Chain(root_key(adapters))
    expected.extend(entries)
    assert [t.key for t in scheduler.tiering.exports([], 1.0)][:3] == expected.keys


def test_cache_prompt_false_neither_gives_nor_takes() -> None:
    loop = tiered(SlowTiers())
    answer(loop, "private", SYSTEM, cache_prompt=False)
    assert loop.store is not None
    assert loop.store.counters().ram_blocks == 0
    answer(loop, "public", SYSTEM)
    flood(loop)
    assert answer(loop, "private again", SYSTEM, cache_prompt=False) == 0


def test_kv_made_with_an_adapter_is_never_read_with_another() -> None:
    loop = tiered(SlowTiers())
    sets = [(), (("poet", 1.0),), (("poet", 0.5),)]
    for adapters in sets:
        assert answer(loop, f"first {adapters}", SYSTEM, adapters=adapters) == 0, "not even between neighbours"
    flood(loop)
    for adapters in sets:
        assert answer(loop, f"again {adapters}", SYSTEM, adapters=adapters) == 159


@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_every_kind_of_model_gets_its_conversation_back(traits: CacheTraits) -> None:
    """S2-16 … S2-19: whole, or at the nearest length at or below the match that was kept."""
    loop = tiered(SlowTiers(), num_slots=2, traits=replace(traits, can_export=True))
    turn = [*SYSTEM[:99], IM_END, *range(40), IM_END, *range(50)]
    answer(loop, "first", turn)
    for _ in range(3):
        flood(loop)
    other = [*SYSTEM[:99], IM_END, *range(100, 140)]
    assert answer(loop, "other question", other) in (96, 99, 100)
    assert answer(loop, "next turn", [*turn, *loop.tokens["first"], IM_END, 5, 6, 7]) >= 160


def test_states_are_taken_at_message_borders() -> None:
    """S2-21, for a model that can only be restored at lengths that were kept."""
    exported: list[int] = []
    loop = tiered(traits=CANNOT_CUT)
    original = loop.backend.export_kv

    def export_kv(slot: int, start: int, end: int, take: TakeMemory = new_memory, **more: bool) -> KVBytes:
        exported.append(end)
        return original(slot, start, end, take, **more)

    loop.backend.export_kv = export_kv  # type: ignore[method-assign]
    answer(loop, "a", [*SYSTEM[:80], IM_END, *range(100)])
    assert [length for length in exported if length <= 181] == [80, 160]


def test_blocks_are_exported_once_for_all_states_of_a_prompt() -> None:
    """Where keys and values can be had apart from states: a second state costs no second copy of what is before it."""
    states, blocks = list[tuple[int, int]](), list[tuple[int, int]]()
    loop = tiered(SlowTiers(), traits=APART)
    original = loop.backend.export_kv

    def export_kv(slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True) -> KVBytes:
        (states if has_state else blocks).append((start, end))
        return original(slot, start, end, take, has_state=has_state)

    loop.backend.export_kv = export_kv  # type: ignore[method-assign]
    answer(loop, "a", [*SYSTEM[:80], IM_END, *range(89), IM_END, *range(100)])
    assert loop.transfers is not None
    while loop.transfers.export():
        pass
    assert [end for _, end in states] == [80, 171, 256, 272]
    assert all(start == (end - 1) // BLOCK_ENTRIES * BLOCK_ENTRIES for start, end in states)
    assert sorted(blocks) == [(start, start + BLOCK_ENTRIES) for start in range(0, 256, BLOCK_ENTRIES)]


def test_a_checkpoint_is_not_exported_as_what_was_in_its_slot_before() -> None:
    """Exports are slow, so that a conversation is evicted while half of it is kept, for the checkpoint of another."""
    loop = tiered(SlowTiers(), traits=APART, kv_tokens=1200, num_slots=3)
    loop.scheduler.tiering.observe_export(1, 1.0)
    prompt = [*SYSTEM, *SYSTEM, *range(60)]
    answer(loop, "first", prompt)
    answer(loop, "second", [*reversed(prompt[:370]), IM_END, *range(10)])
    assert loop.transfers is not None
    while loop.transfers.export():
        pass
    assert answer(loop, "again", prompt) == 0


def test_a_state_without_one_of_its_blocks_is_not_restored() -> None:
    tiers = SlowTiers()
    loop = tiered(tiers, traits=APART)
    prompt = [*SYSTEM[:99], IM_END, *range(100)]
    answer(loop, "first", prompt)
    for _ in range(3):
        flood(loop)
    chain = Chain(root_key(()))
    chain.extend(prompt)
    tiers.discard(chain.keys[1])
    assert answer(loop, "again", prompt) == 0


def test_whoever_waits_for_the_disk_does_not_hold_up_others_and_then_goes_on() -> None:
    tiers = SlowTiers()
    loop = tiered(tiers)
    answer(loop, "first", SYSTEM)
    flood(loop)
    tiers.forget_memory()
    loop.add(make_request("again", [*SYSTEM, 7], 2))
    sequence = loop.scheduler.sequence("again")
    loop.step()
    assert sequence.slot is None
    assert loop.scheduler.awaits_tiers
    loop.add(make_request("other", [1, 2, 3], 1))
    loop.step()
    assert "other" in loop.reasons
    tiers.arrive()
    loop.run()
    assert sequence.num_cached == len(SYSTEM)


def test_what_the_disk_lost_is_computed() -> None:
    tiers = SlowTiers()
    loop = tiered(tiers)
    answer(loop, "first", SYSTEM)
    flood(loop)
    tiers.forget_memory()
    request = make_request("again", [*SYSTEM, 7], 2)
    loop.add(request)
    loop.step()
    tiers.on_disk.clear()
    tiers.arrive(is_lost=True)
    loop.run()
    assert loop.tokens["again"] == answer_alone(request, 400, 400)


def test_restoring_that_costs_more_than_computing_is_left_alone_but_tried_again_some_time() -> None:
    loop = tiered()
    answer(loop, "first", SYSTEM)
    flood(loop)
    for _ in range(30):
        loop.scheduler.observe(prompt_step(100), 0.1)
        loop.scheduler.tiering.observe_import(100, 0.5)
    assert answer(loop, "again", [*SYSTEM, 7]) == 0
    for index in range(60):
        flood(loop)
        if answer(loop, f"again{index}", [*SYSTEM, 7]):
            return
    raise AssertionError("one bad measurement was for ever")


def test_reading_that_costs_more_than_computing_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = SlowTiers()
    loop = tiered(tiers)
    answer(loop, "first", SYSTEM)
    flood(loop)
    tiers.forget_memory()
    loop.scheduler.observe(prompt_step(100), 0.1)
    monkeypatch.setattr(tiers, "read_s", lambda keys: 0.01 * 32 * len(keys))
    assert answer(loop, "again", [*SYSTEM, 7]) == 0
    assert not tiers.wanted


@pytest.mark.parametrize("traits", [CANNOT_CUT, CacheTraits(can_truncate=True, can_copy=True, shares_cells=True)])
def test_an_import_that_fails_costs_a_computation_and_nobody_an_answer(traits: CacheTraits) -> None:
    loop = tiered(SlowTiers(), traits=replace(traits, can_export=True))
    prompt = [*SYSTEM[:99], IM_END, *range(100)]
    answer(loop, "first", prompt)
    for _ in range(3):
        flood(loop)
    original, calls = loop.backend.import_kv, list[int]()

    def import_kv(slot: int, start: int, end: int, state: KVBytes, **more: bool) -> None:
        calls.append(start)
        if len(calls) == (3 if traits.can_truncate or traits.exports_apart else 1):
            raise BackendError("injected")
        original(slot, start, end, state, **more)

    loop.backend.import_kv = import_kv  # type: ignore[method-assign]
    assert answer(loop, "again", prompt) == (2 * BLOCK_ENTRIES if traits.can_truncate else 0)
    assert loop.transfers is not None
    assert loop.transfers.counters().failed_restores == 1


def test_an_export_that_fails_is_not_tried_for_ever() -> None:
    loop = tiered(SlowTiers())

    def export_kv(slot: int, start: int, end: int, take: TakeMemory = new_memory, **more: bool) -> KVBytes:
        raise BackendError("injected")

    loop.backend.export_kv = export_kv  # type: ignore[method-assign]
    answer(loop, "first", SYSTEM)
    assert loop.transfers is not None
    while loop.transfers.export():
        pass
    assert loop.transfers.counters().failed_exports == 5 + 2, "blocks and tails"


def test_a_prompt_that_fails_is_tried_once_more_with_nothing_that_others_left() -> None:
    """S2-14: nobody has heard anything yet, so nobody notices."""
    fails = [False]

    def fail(batch: object) -> None:
        if fails[0]:
            fails[0] = False
            raise BackendError("injected")

    loop = Loop(info(), before_forward=fail)
    answer(loop, "first", SYSTEM)
    fails[0] = True
    assert answer(loop, "again", [*SYSTEM, 7]) == 0
    assert loop.reasons["again"] is FinishReason.LENGTH
    assert answer(loop, "third", [*SYSTEM, 7]) == len(SYSTEM), "what was there before is still there"


def test_a_prompt_that_fails_twice_is_an_error() -> None:
    """S2-14: the second failure is its own."""

    def fail(batch: object) -> None:
        raise BackendError("injected")

    loop = Loop(info(), before_forward=fail)
    loop.add(make_request("a", SYSTEM, 2))
    loop.run()
    assert loop.reasons["a"] is FinishReason.ERROR
    assert loop.scheduler.kv.ledger.held == 0


def test_nothing_is_retried_after_the_first_token() -> None:
    """S2-15."""
    fails = [False]

    def fail(batch: object) -> None:
        if fails[0]:
            raise BackendError("injected")

    loop = Loop(info(), before_forward=fail)
    loop.add(make_request("a", SYSTEM, 20))
    while not loop.tokens["a"]:
        loop.step()
    fails[0] = True
    loop.step()
    assert loop.reasons["a"] is FinishReason.ERROR


def test_a_cancelled_prompt_is_kept_in_the_tiers_too() -> None:
    loop = tiered(SlowTiers(), max_batch_tokens=64)
    loop.add(make_request("gone", SYSTEM, 2))
    loop.step()
    loop.step()
    loop.abort("gone")
    flood(loop)
    assert answer(loop, "again", SYSTEM) == 128
