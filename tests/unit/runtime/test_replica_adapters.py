"""Adapters of a model with replicas: all of them have the same, whatever happens to each meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker.engine.config import AdapterSpec
from stoker.engine.question_messages import ChangeAdapters
from stoker.errors import AdapterInvalid, AdapterNotFound, EngineCrashed, ModelNotLoaded
from stoker.runtime.replica import Phase
from tests.unit.runtime.fake_replica import Stage, play
from tests.waiting import until

POET = AdapterSpec(name="poet", path="poet.gguf")


def test_a_change_reaches_all_and_the_card_says_so():
    stage = Stage(3)

    async def test() -> None:
        assert [card.name for card in (await stage.runtime.ask(ChangeAdapters())).adapters] == ["sql"]
        await stage.runtime.ask(ChangeAdapters(load=POET))
        assert [fake.names() for fake in stage.made] == [["poet", "sql"]] * 3
        assert [card.name for card in stage.runtime.card.adapters] == ["sql", "poet"]
        cards = (await stage.runtime.ask(ChangeAdapters(scales={1: 0.5}))).adapters
        assert [(card.name, card.scale) for card in cards] == [("sql", 0.0), ("poet", 0.5)]
        assert all(fake.adapters["poet"].scale == 0.5 for fake in stage.made)
        await stage.runtime.ask(ChangeAdapters(unload="sql"))
        assert [fake.names() for fake in stage.made] == [["poet"]] * 3

    play(stage, test())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"load": POET}, AdapterInvalid("it was changed meanwhile", path="poet.gguf")),
        ({"scales": {0: 0.25}}, AdapterInvalid("no", path="")),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_if_one_refuses_nobody_has_it(number: int, change: dict[str, Any], error: AdapterInvalid):
    stage = Stage(3)

    async def test() -> None:
        stage.made[number].change_error = error
        with pytest.raises(AdapterInvalid):
            await stage.runtime.ask(ChangeAdapters(**change))
        for fake in stage.made:
            assert [(card.name, card.scale) for card in fake.adapters.values()] == [("sql", 1.0)]
            assert [(spec.name, spec.scale) for spec in fake.next_adapters] == [("sql", 1.0)]
        assert stage.runtime.card.adapters == []

    play(stage, test())


def test_an_unknown_name_changes_nothing():
    stage = Stage(2)

    async def test() -> None:
        with pytest.raises(AdapterNotFound):
            await stage.runtime.ask(ChangeAdapters(unload="nobody"))
        assert [fake.names() for fake in stage.made] == [["sql"]] * 2

    play(stage, test())


def test_one_that_is_away_comes_back_with_what_the_others_have():
    stage = Stage(2)

    async def test() -> None:
        stage.made[0].crash()
        await stage.runtime.ask(ChangeAdapters(load=POET))
        await stage.runtime.ask(ChangeAdapters(unload="sql"))
        stage.made[0].recover()
        assert stage.made[0].names() == stage.made[1].names() == ["poet"]
        assert stage.made[0].adapters["poet"].adapter_id == stage.made[1].adapters["poet"].adapter_id
        cards = (await stage.runtime.ask(ChangeAdapters(load=AdapterSpec(name="third", path="t")))).adapters
        ids = {card.name: card.adapter_id for card in cards}
        assert [{c.name: c.adapter_id for c in fake.adapters.values()} for fake in stage.made] == [ids, ids]

    play(stage, test())


@pytest.mark.parametrize("error", [EngineCrashed("it died"), ModelNotLoaded("it has died")])
def test_one_that_dies_under_the_change_comes_back_with_it(error: EngineCrashed):
    stage = Stage(3)

    async def test() -> None:
        stage.made[1].change_error = error
        await stage.runtime.ask(ChangeAdapters(load=POET))
        stage.made[1].crash()
        stage.made[1].recover()
        assert [fake.names() for fake in stage.made] == [["poet", "sql"]] * 3

    play(stage, test())


def test_those_that_come_during_a_change_have_it_too():
    stage = Stage("1-3", scale_hold_s=0, scale_cooldown_s=0)

    async def test() -> None:
        first = stage.made[0]
        first.change_gate.clear()
        change = asyncio.ensure_future(stage.runtime.ask(ChangeAdapters(load=POET)))
        stage.loads_freely = False
        fleet, members = stage.fleet, stage.fleet.members
        fleet._add()
        stage.made[1].load_gate.set()
        await until(lambda: members.replicas[1].phase is Phase.SERVING)
        fleet._add()  # this one is still loading when the change is done
        first.change_gate.set()
        await change
        stage.made[2].load_gate.set()
        await until(lambda: members.replicas[2].phase is Phase.SERVING)
        members.remove(members.replicas[1])
        fleet._add()
        stage.made[3].load_gate.set()
        await until(lambda: all(replica.phase is Phase.SERVING for replica in members.replicas))
        assert [fake.names() for fake in stage.made] == [["poet", "sql"]] * 4

    play(stage, test())


def test_changes_are_made_one_after_the_other():
    stage = Stage(2)

    async def test() -> None:
        specs = [AdapterSpec(name=name, path=name) for name in "abcd"]
        await asyncio.gather(*(stage.runtime.ask(ChangeAdapters(load=spec)) for spec in specs))
        loaded = [{card.name: card.adapter_id for card in fake.adapters.values()} for fake in stage.made]
        assert loaded[0] == loaded[1] == {"sql": 0, "a": 1, "b": 2, "c": 3, "d": 4}

    play(stage, test())


def test_a_model_that_is_loaded_again_begins_with_what_it_had():
    stage = Stage(2)
    stage.runtime.begin_with([POET])

    async def test() -> None:
        assert [fake.names() for fake in stage.made] == [["poet"]] * 2

    play(stage, test())
