"""What is embedded in one pass: within the budget, in turns between clients, and everything exactly once."""

from __future__ import annotations

import random

import pytest

from stoker.core.embedding import EmbeddingInfo, EmbeddingQueue, Piece, Pooling
from stoker.core.params import BUILT_IN
from stoker.core.request import Request
from stoker.core.sequence import Sequence
from stoker.core.token_budget import MIN_CHUNK


def info(*, can_split: bool = True, max_batch_tokens: int = 64, num_slots: int = 8) -> EmbeddingInfo:
    return EmbeddingInfo(
        pooling=Pooling.MEAN,
        size=4,
        max_tokens=64,
        max_batch_tokens=max_batch_tokens,
        num_slots=num_slots,
        can_split=can_split,
    )


def sequence(length: int, client_key: str = "a", priority: int = 0) -> Sequence:
    request = Request(
        request_id="r", prompt=tuple(range(length)), sampling=BUILT_IN, client_key=client_key, priority=priority
    )
    return Sequence(request)


def drain(queue: EmbeddingQueue, budget: int) -> list[list[tuple[Sequence, Piece]]]:
    passes: list[list[tuple[Sequence, Piece]]] = []
    while queue.has_work:
        passes.append(queue.plan(budget))
        queue.update(passes[-1])
    return passes


@pytest.mark.parametrize("can_split", [True, False])
@pytest.mark.parametrize("budget", [0, 20, 50, 1000])
def test_every_entry_is_computed_once_and_in_order(can_split: bool, budget: int):
    rng = random.Random(budget)
    queue = EmbeddingQueue(info(can_split=can_split))
    sequences = [sequence(rng.randrange(1, 65), rng.choice("abc"), rng.choice([0, 0, 1])) for _ in range(40)]
    for one in sequences:
        queue.add(one)
    found: dict[int, list[int]] = {}
    for planned in drain(queue, budget):
        assert 0 < len(planned) <= 8
        assert sum(len(piece.entries) for _, piece in planned) <= 64
        slots = [piece.slot for _, piece in planned]
        assert len(slots) == len(set(slots))
        for one, piece in planned:
            known = found.setdefault(id(one), [])
            assert piece.start == len(known)
            assert piece.slot == 0 or (piece.start == 0 and piece.is_last)
            known += piece.entries
            assert piece.is_last == (len(known) == len(one.entries))
            assert can_split or piece.slot > 0
    assert found == {id(one): one.entries for one in sequences}
    assert queue.num_tokens == 0


def test_pass_keeps_to_its_budget_if_sequences_can_be_split():
    queue = EmbeddingQueue(info())
    for length in (64, 5, 40, 64, 3):
        queue.add(sequence(length))
    passes = drain(queue, 20)
    assert all(sum(len(piece.entries) for _, piece in planned) <= 20 for planned in passes)
    assert len(passes) <= 12, "about 176 / 20"


def test_least_pass_and_a_sequence_that_cannot_be_split():
    queue = EmbeddingQueue(info(can_split=False))
    queue.add(sequence(60))
    queue.add(sequence(10))
    assert [len(piece.entries) for _, piece in queue.plan(0)] == [60]
    splitting = EmbeddingQueue(info())
    splitting.add(sequence(60))
    assert [len(piece.entries) for _, piece in splitting.plan(0)] == [MIN_CHUNK]


def test_short_ones_do_not_wait_for_the_end_of_a_long_one():
    queue = EmbeddingQueue(info())
    long = sequence(64)
    queue.add(long)
    queue.update(queue.plan(20))
    short = sequence(8, "b")
    queue.add(short)
    planned = queue.plan(20)
    assert [one for one, _ in planned] == [long, short]
    assert [len(piece.entries) for _, piece in planned] == [12, 8]


def test_clients_take_turns_and_priority_comes_first():
    queue = EmbeddingQueue(info(max_batch_tokens=20))
    many = [sequence(20, "greedy") for _ in range(5)]
    for one in many:
        queue.add(one)
    queue.update(queue.plan(20))
    modest, urgent = sequence(20, "modest"), sequence(20, "greedy", priority=1)
    queue.add(modest)
    queue.add(urgent)
    order = [one for planned in drain(queue, 20) for one, _ in planned]
    assert order[:2] == [urgent, modest]


def test_removed_sequences_leave_nothing():
    queue = EmbeddingQueue(info())
    split, waiting, other = sequence(64), sequence(10), sequence(64)
    for one in (split, waiting, other):
        queue.add(one)
    queue.update(queue.plan(20))
    queue.remove(split)
    queue.remove(waiting)
    assert queue.num_tokens == 64
    ((first, piece),) = queue.plan(20)
    assert (first, piece.start, piece.slot) == (other, 0, 0)
    queue.remove(other)
    assert not queue.has_work
