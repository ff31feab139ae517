"""Engines that are asked and told: they never hold more together than their shares, even if some do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.question_messages import KVShare, ShareKV
from stoker.errors import EngineCrashed
from stoker.runtime import kv_lending
from stoker.runtime.instance import Instance
from stoker.runtime.kv_lending import KVLending
from stoker.runtime.kv_shares import PoolUse
from stoker.runtime.served import ServedModel
from tests.unit.runtime.fake_models import Clock, live, settled
from tests.waiting import run, until

SHARE, LEAST, MOST = 1000, 250, 3000


@dataclass(eq=False)
class Engine:
    """What an engine says about its pool. As a real one, it counts in cells, which are of ten bytes."""

    all: list[Engine]
    most: int = MOST
    limit: int = LEAST
    held: int = 0
    needed: int = 0
    is_short: bool = False
    answers: bool = True
    loses_answers: bool = False
    """It does what it is told, and says nothing."""
    num_asked: int = 0
    told: list[int] = field(default_factory=list[int])

    async def ask(self, question: ShareKV) -> KVShare:
        self.num_asked += 1
        await asyncio.sleep(0)
        if not self.answers:
            raise EngineCrashed("gone")
        if question.limit is not None:
            self.limit = max(LEAST, min(question.limit // 10 * 10, self.most))
            self.held = min(self.held, self.limit)
            self.told.append(self.limit)
            assert sum(engine.limit for engine in self.all) <= SHARE * len(self.all), "more than there is"
        if self.loses_answers:
            raise EngineCrashed("gone")
        return KVShare(
            "q",
            limit=self.limit,
            share=SHARE,
            least=LEAST,
            most=self.most,
            held=self.held,
            needed=self.needed,
            is_short=self.is_short,
        )

    @property
    def card(self) -> SimpleNamespace:
        return SimpleNamespace(most_kv_tokens=self.most)


class Machine:
    """So many engines, and what lends between them."""

    def __init__(self, count: int) -> None:
        self.engines: list[Engine] = []
        for _ in range(count):
            self.engines.append(Engine(self.engines))
        self.clock = Clock()
        self.lending = KVLending(lambda: self.instances, self.clock)
        served = [ServedModel((f"{i}",), cast("Any", engine)) for i, engine in enumerate(self.engines)]
        self.instances = [Instance(each, None, self.clock, self.lending.wake, self.lending.wake) for each in served]

    async def look(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            await self.lending.look(self.instances)

    @property
    def limits(self) -> list[int]:
        return [engine.limit for engine in self.engines]


@live
async def test_a_model_that_is_loaded_gets_its_share_and_one_that_is_busy_what_another_leaves():
    machine = Machine(2)
    first, second = machine.engines
    await machine.look()
    assert machine.limits == [SHARE, SHARE]
    first.needed = first.held = SHARE
    await machine.look()
    assert machine.limits[0] > SHARE
    first.needed = 5 * SHARE
    await machine.look()
    assert machine.limits == [2 * SHARE - LEAST, LEAST]
    first.held = machine.limits[0]
    second.needed = SHARE
    await machine.look()
    assert machine.limits == [SHARE, SHARE], "it has its share back after one look"


@live
async def test_nothing_is_lowered_for_nothing():
    machine = Machine(2)
    first, _ = machine.engines
    first.needed = first.held = 1200
    await machine.look()
    before = machine.limits
    for engine in machine.engines:
        engine.told.clear()
    await machine.look(3)
    assert (machine.limits, [engine.told for engine in machine.engines]) == (before, [[], []])
    first.needed = 0
    await machine.look(3)
    assert first.held == 1200, "finished conversations stay as long as no request needs the room"


@live
async def test_an_engine_that_does_not_answer_keeps_what_it_has_and_others_keep_to_the_rest():
    machine = Machine(2)
    first, second = machine.engines
    first.needed = 5 * SHARE
    await machine.look()
    first.answers, second.needed = False, SHARE
    await machine.look(3)
    assert machine.limits == [2 * SHARE - LEAST, LEAST]
    first.answers, first.limit, first.held, first.needed = True, LEAST, 0, 0  # a new process
    await machine.look()
    assert second.limit >= SHARE


@live
async def test_what_an_engine_may_have_been_told_is_counted_although_it_has_not_answered():
    machine = Machine(3)
    first, second, _ = machine.engines
    await machine.look()
    first.needed, first.loses_answers = 5 * SHARE, True
    await machine.look()
    second.needed = 5 * SHARE
    await machine.look(3)
    assert sum(machine.limits) <= 3 * SHARE


@live
async def test_what_a_model_had_lent_goes_with_it():
    machine = Machine(2)
    first, _ = machine.engines
    first.needed = first.held = 5 * SHARE
    await machine.look()
    first.held = first.limit
    del machine.engines[1], machine.instances[1]
    await machine.look()
    assert first.limit == first.held == SHARE


@live
async def test_engines_are_asked_while_models_have_requests_and_not_while_all_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_lending, "EVERY_S", 0.0)
    machine = Machine(2)
    machine.lending.open()
    await until(lambda: machine.limits == [SHARE, SHARE])
    await settled()
    num_asked = [engine.num_asked for engine in machine.engines]
    await settled()
    assert [engine.num_asked for engine in machine.engines] == num_asked
    lease = machine.instances[0].lease()
    machine.engines[0].needed = 5 * SHARE
    await until(lambda: machine.limits == [2 * SHARE - LEAST, LEAST])
    machine.engines[0].needed = 0
    lease.close()
    await until(lambda: machine.limits[1] == SHARE)
    await machine.lending.close()


@live
async def test_a_model_alone_is_asked_until_it_has_its_share():
    machine = Machine(1)
    machine.lending.open()
    await until(lambda: machine.limits == [SHARE])
    await settled()
    num_asked = machine.engines[0].num_asked
    for _ in range(3):
        machine.instances[0].lease().close()
        await settled()
    assert machine.engines[0].num_asked == num_asked
    await machine.lending.close()


@live
async def test_a_round_that_fails_is_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_lending, "EVERY_S", 0.0)
    machine, faults = Machine(2), [ZeroDivisionError("a fault")]
    share_out = kv_lending.share_out

    def failing(pools: Sequence[PoolUse]) -> list[int]:
        if faults:
            raise faults.pop()
        return share_out(pools)

    monkeypatch.setattr(kv_lending, "share_out", failing)
    machine.lending.open()
    await until(lambda: not faults)
    machine.instances[0].lease()
    await until(lambda: machine.limits == [SHARE, SHARE])
    assert "a look at the KV pools failed" in caplog.text
    await machine.lending.close()


STATES = st.tuples(st.integers(0, 400), st.integers(0, 400), st.booleans(), st.integers(0, 5))


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(STATES, min_size=n, max_size=n), min_size=1, max_size=8)))
def test_whatever_happens_no_model_starves(history: list[list[tuple[int, int, bool, int]]]) -> None:
    async def live_through() -> None:
        machine = Machine(len(history[0]))
        for states in history:
            for engine, (needed, held, is_short, luck) in zip(machine.engines, states, strict=True):
                engine.needed, engine.is_short, engine.answers = needed * 10, is_short, luck > 0
                engine.held = min(engine.limit, held * 10)
            await machine.look()
            if all(engine.answers for engine in machine.engines):
                for engine in machine.engines:
                    assert engine.limit >= min(engine.needed, SHARE), "its share is there after one look"

    run(live_through())
