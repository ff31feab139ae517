"""Adapters belong to the model: whoever computes it next has them too."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec
from stoker.engine.question_messages import ChangeAdapters
from stoker.errors import AdapterNotFound, BackendError, ModelNotLoaded
from tests.unit.runtime.fake_models import FakeModel, Machine, live, running
from tests.waiting import until

POET = AdapterSpec(name="poet", path="poet.gguf")


def model(name: str, size: int = 10) -> FakeModel:
    return FakeModel(name, size=size)


async def names(machine: Machine, name: str) -> list[str]:
    lease = await machine.registry.lease(name)
    lease.close()
    return [card.name for card in (await lease.served.runtime.ask(ChangeAdapters())).adapters]


@live
async def test_they_survive_a_reload_an_unload_and_an_eviction():
    async with running(model("a", 600), model("b", 600), memory=1000) as machine:
        registry = machine.registry
        cards = await registry.change_adapters("a", ChangeAdapters(load=POET))
        assert [card.name for card in cards] == ["poet"]
        await registry.load("a", is_reload=True, waits=True)
        assert await names(machine, "a") == ["poet"]
        await registry.unload("a", waits=True)
        assert registry.find("a").adapters == tuple(cards)
        assert await names(machine, "a") == ["poet"]
        asked = machine.ask("b")
        await until(lambda: registry.find("b").num_waiting > 0)
        machine.advance(60)
        (await asked).close()
        assert machine.states() == {"a": "unloaded", "b": "loaded"}
        machine.advance(60)
        again = machine.ask("a")
        machine.advance(60)
        (await again).close()
        assert await names(machine, "a") == ["poet"]
        await registry.change_adapters("a", ChangeAdapters(unload="poet"))
        await registry.load("a", is_reload=True, waits=True)
        assert await names(machine, "a") == []


@live
async def test_another_model_under_the_name_has_its_own():
    async with running(model("a"), model("b")) as machine:
        await machine.registry.change_adapters("a", ChangeAdapters(load=POET))
        await machine.registry.load("a", source="b", waits=True)
        assert await names(machine, "a") == []
        assert machine.registry.find("a").adapters is None


@live
async def test_a_reload_that_fails_leaves_them():
    async with running(a := model("a")) as machine:
        await machine.registry.change_adapters("a", ChangeAdapters(load=POET))
        a.errors.append(BackendError("no"))
        with pytest.raises(BackendError):
            await machine.registry.load("a", is_reload=True, waits=True)
        assert await names(machine, "a") == ["poet"]


@live
async def test_what_is_refused_is_not_remembered():
    async with running(model("a")) as machine:
        with pytest.raises(AdapterNotFound):
            await machine.registry.change_adapters("a", ChangeAdapters(unload="poet"))
        assert machine.registry.find("a").adapters is None


@live
async def test_while_it_is_reloaded_a_change_is_refused_and_one_that_has_begun_is_waited_for():
    async with running(a := model("a")) as machine:
        registry = machine.registry
        await machine.use("a")
        a.change_gate.clear()
        begun = asyncio.ensure_future(registry.change_adapters("a", ChangeAdapters(load=POET)))
        await until(lambda: a.num_changing == 1)
        reload = asyncio.ensure_future(registry.load("a", is_reload=True, waits=True))
        await until(lambda: registry._entries["a"].job is not None)
        refused = asyncio.ensure_future(registry.change_adapters("a", ChangeAdapters(unload="poet")))
        begun.cancel()  # the client leaves; what it has asked for is done
        a.change_gate.set()
        with pytest.raises(ModelNotLoaded, match="try again"):
            await refused
        await reload
        assert len(a.made) == 2
        assert await names(machine, "a") == ["poet"]


@live
async def test_one_that_cannot_be_loaded_any_more_is_left_out():
    async with running(a := model("a")) as machine:
        await machine.registry.change_adapters("a", ChangeAdapters(load=POET))
        a.lost_adapters.add("poet")
        await machine.registry.load("a", is_reload=True, waits=True)
        assert machine.registry.find("a").adapters == ()


def test_the_card_of_an_adapter_is_what_a_later_engine_is_told():
    card = AdapterCard(adapter_id=3, name="a", path="p", scale=0.5, rank=8, size_bytes=9)
    assert card.as_spec() == AdapterSpec(name="a", path="p", scale=0.5, adapter_id=3, is_required=False)
