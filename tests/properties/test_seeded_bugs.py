"""The property tests are worth something only if they notice bugs: each of these is put in, and must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from stoker.core.batch import CopyPrefix, Truncate
from stoker.core.kv_cache import KVCache
from stoker.core.ledger import Ledger
from stoker.core.population import Population
from stoker.core.prefix_tree import Match, Node, PrefixTree
from stoker.core.scheduler import Scheduler
from stoker.core.sequence import FinishReason, Sequence
from stoker.core.slot_admission import SlotAdmission
from stoker.core.waiting import WaitingQueue
from tests.brief import every, examples
from tests.properties.test_scheduler_invariances import check_answers

Patch = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Patch] = {}
SEEDS = range(60)


def bug(patch: Patch) -> Patch:
    BUGS[patch.__name__] = patch
    return patch


@bug
def reuses_the_last_prompt_entry_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: SlotAdmission, sequence):
        return self._kv.find_reuse(sequence.entries, len(sequence.entries), sequence.cache_key)

    monkeypatch.setattr(SlotAdmission, "_find_reuse", find)


@bug
def matches_one_entry_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PrefixTree.match

    def match(self: PrefixTree, entries, key=None):
        found = original(self, entries, key)
        is_inside = 0 < found.depth < len(found.node.entries)
        return Match(found.node, found.depth + 1, found.length + 1) if is_inside else found

    monkeypatch.setattr(PrefixTree, "match", match)


@bug
def forgets_to_copy_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache.take_ops
    monkeypatch.setattr(
        KVCache, "take_ops", lambda self: tuple(op for op in original(self) if not isinstance(op, CopyPrefix))
    )


@bug
def copies_one_entry_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache.take_ops

    def take_ops(self: KVCache):
        ops = original(self)
        return tuple(replace(op, length=max(op.length - 1, 1)) if isinstance(op, CopyPrefix) else op for op in ops)

    monkeypatch.setattr(KVCache, "take_ops", take_ops)


@bug
def forgets_to_cut_the_native_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache.take_ops
    monkeypatch.setattr(
        KVCache, "take_ops", lambda self: tuple(op for op in original(self) if not isinstance(op, Truncate))
    )


@bug
def applies_operations_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache.take_ops
    monkeypatch.setattr(KVCache, "take_ops", lambda self: tuple(reversed(original(self))))


@bug
def offers_entries_before_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def promise(self: Ledger, slot, entries):
        self._tree.extend(slot, entries)

    monkeypatch.setattr(Ledger, "promise", promise)


@bug
def counts_promised_cells_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "free", property(lambda self: self.capacity - self.held))


@bug
def evicts_a_running_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache.make_room

    def make_room(self: KVCache, num_cells):
        if self.ledger.free < num_cells and len(self._running) > 1:
            self._clear(next(iter(self._running)))
        return original(self, num_cells)

    monkeypatch.setattr(KVCache, "make_room", make_room)


@bug
def preempted_sequences_keep_their_position(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Population.preempt

    def preempt(self: Population, sequence):
        computed = sequence.num_computed
        original(self, sequence)
        sequence.num_computed = computed

    monkeypatch.setattr(Population, "preempt", preempt)


@bug
def preempted_sequences_lose_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Population.preempt

    def preempt(self: Population, sequence):
        original(self, sequence)
        if sequence.num_completion:
            sequence.entries.pop()

    monkeypatch.setattr(Population, "preempt", preempt)


@bug
def a_finished_slot_is_never_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(self: KVCache, slot, *, retain):
        self._running.pop(slot)

    monkeypatch.setattr(KVCache, "close", close)


@bug
def splitting_a_node_forgets_who_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PrefixTree._split

    def split(self: PrefixTree, node: Node, depth):
        upper = original(self, node, depth)
        upper.num_slots = 1
        return upper

    monkeypatch.setattr(PrefixTree, "_split", split)


@bug
def a_shared_node_is_extended_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def extend(self: PrefixTree, slot, entries):
        tip = self._tips[slot]
        if tip.parent is None:
            tip.children.append(node := Node(tip, []))
            node.num_slots = 1
            self._move_tip(slot, node)
            tip = node
        tip.entries.extend(entries)
        self.num_distinct += len(entries)
        self.num_total += len(entries)
        self._lengths[slot] += len(entries)

    monkeypatch.setattr(PrefixTree, "extend", extend)


@bug
def one_token_more_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sequence.begin

    def begin(request, arrival, info):
        sequence = original(request, arrival, info)
        sequence.max_entries = min(sequence.max_entries + 1, info.max_sequence_tokens)
        return sequence

    monkeypatch.setattr(Sequence, "begin", begin)


@bug
def the_end_of_generation_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sequence.begin

    def begin(request, arrival, info):
        sequence = original(request, arrival, info)
        sequence.ends = frozenset()
        return sequence

    monkeypatch.setattr(Sequence, "begin", begin)


@bug
def rows_go_to_the_wrong_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scheduler.sequences
    monkeypatch.setattr(Scheduler, "sequences", lambda self, batch: list(reversed(original(self, batch))))


@bug
def a_resumed_sequence_has_lost_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Population.resume

    def resume(self: Population, request_id: str):
        sequence = self._paused.get(request_id)
        if sequence is not None and sequence.num_completion:
            sequence.entries.pop()
        original(self, request_id)

    monkeypatch.setattr(Population, "resume", resume)


@bug
def a_paused_sequence_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Scheduler, "pause", lambda self, request_id: self._population._paused.update({request_id: None})
    )


@bug
def a_resumed_sequence_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "resume", lambda self, request_id: None)


@bug
def an_aborted_request_stays_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Population, sequence, reason):
        if sequence.slot is None and reason is FinishReason.CANCELLED:
            del self._alive[sequence.request.request_id]
            self._ended[sequence.request.request_id] = sequence
            return
        original(self, sequence, reason)

    original = Population.end
    monkeypatch.setattr(Population, "end", end)


@bug
def the_queue_loses_preempted_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingQueue, "push_front", lambda self, sequence: None)


def is_caught(seeds: Iterable[int] = SEEDS) -> bool:
    try:
        for seed in seeds:
            check_answers(seed)
    except (AssertionError, LookupError, ValueError, TypeError):
        return True
    return False


def test_without_a_bug_nothing_is_caught() -> None:
    assert not is_caught(SEEDS[: examples(len(SEEDS))])


@pytest.mark.parametrize("name", every(3, BUGS))
def test_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    monkeypatch.setattr("tests.harness.MAX_STEPS", 2000)
    assert is_caught()
