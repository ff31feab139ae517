"""A model that is replaced while it is in use."""

import asyncio

import pytest

from stoker.errors import EngineCrashed, ModelFileInvalid, ModelNotFound, ModelNotLoaded, StokerError
from tests.unit.runtime.fake_models import FakeModel, LoadedModel, live, running, settled
from tests.waiting import until


@live
async def test_new_one_is_loaded_beside_the_old_one_which_ends_with_its_last_request():
    model = FakeModel("a", 40)
    async with running(model, memory=100) as machine:
        running_request = await machine.registry.lease("a")
        model.gate.clear()
        await machine.registry.load("a", is_reload=True)
        await until(lambda: len(model.made) == 2)
        meanwhile = await machine.registry.lease("a")
        assert meanwhile.served.runtime is model.made[0]
        meanwhile.close()
        model.gate.set()
        await until(lambda: model.made[1].is_loaded)
        await settled()
        later = await machine.registry.lease("a")
        assert later.served.runtime is model.made[1]
        assert running_request.served.runtime is model.made[0]
        assert model.made[0].num_closes == 0
        assert later.served.metrics is running_request.served.metrics
        running_request.close()
        await until(lambda: model.made[0].num_closes == 1)
        later.close()


@live
async def test_without_room_for_both_the_old_one_ends_first_and_requests_wait():
    model = FakeModel("a", 60)
    async with running(model, memory=100) as machine:
        running_request = await machine.registry.lease("a")
        await machine.registry.load("a", is_reload=True)
        await until(lambda: not machine.registry._entries["a"].takes_requests)
        later = [machine.ask("a") for _ in range(3)]
        await settled()
        assert (model.num_loaded, len(model.made)) == (1, 1)
        running_request.close()
        leases = await asyncio.gather(*later)
        assert {lease.served.runtime for lease in leases} == {model.made[1]}
        assert model.made[0].num_closes == 1
        for lease in leases:
            lease.close()


@live
async def test_failed_reload_beside_leaves_the_old_one_alone():
    model = FakeModel("a", 40)
    async with running(model, memory=100) as machine:
        await machine.use("a")
        model.errors = [ModelFileInvalid("truncated")]
        with pytest.raises(ModelFileInvalid):
            await machine.registry.load("a", is_reload=True, waits=True)
        lease = await machine.registry.lease("a")
        assert lease.served.runtime is model.made[0]
        lease.close()
        status = machine.registry.find("a")
        assert (status.state, str(status.error)) == ("loaded", "truncated")
        await machine.registry.load("a", is_reload=True, waits=True)
        assert machine.registry.find("a").error is None


@live
async def test_failed_reload_without_room_brings_the_old_one_back_and_serves_those_who_wait():
    a, b = FakeModel("a", 60), FakeModel("b", 60, errors=[ModelFileInvalid("truncated")])
    async with running(a, b, memory=100) as machine:
        lease = await machine.registry.lease("a")
        reloading = asyncio.ensure_future(machine.registry.load("a", source="b", waits=True))
        await until(lambda: not machine.registry._entries["a"].takes_requests)
        later = machine.ask("a")
        lease.close()
        with pytest.raises(ModelFileInvalid):
            await reloading
        lease = await later
        assert lease.served.runtime is a.made[1]
        assert (len(a.made), len(b.made)) == (2, 1)
        lease.close()


@live
async def test_old_one_comes_back_even_if_nobody_waits_for_it():
    model = FakeModel("a", 60)
    async with running(model, memory=100) as machine:
        await machine.use("a")
        model.errors = [ModelFileInvalid("truncated")]
        with pytest.raises(ModelFileInvalid):
            await machine.registry.load("a", is_reload=True, waits=True)
        await until(lambda: machine.states()["a"] == "loaded")
        assert (len(model.made), model.num_loaded) == (3, 1)


@live
async def test_reload_of_a_file_that_has_gone_changes_nothing():
    model = FakeModel("a", 60)
    async with running(model, memory=100) as machine:
        await machine.use("a")
        model.measure_error = ModelFileInvalid("gone")
        with pytest.raises(ModelFileInvalid):
            await machine.registry.load("a", is_reload=True, waits=True)
        await machine.use("a")
        assert len(model.made) == 1


@live
async def test_process_that_dies_during_a_reload_is_tried_again():
    model = FakeModel("a", 40)
    async with running(model, memory=100) as machine:
        await machine.use("a")
        model.errors = [EngineCrashed("killed")]
        await machine.registry.load("a", is_reload=True, waits=True)
        lease = await machine.registry.lease("a")
        assert lease.served.runtime is model.made[2]
        lease.close()


@live
async def test_name_can_be_given_to_another_model():
    old, new = FakeModel("old", 40), FakeModel("new", 40)
    specs = [old.spec(names=("chat", "alias"), loads_at_start=True), new.spec()]
    async with running(specs=specs, memory=100) as machine:
        machine.models = [old, new]
        before = await machine.registry.lease("alias")
        await machine.registry.load("chat", source="new", waits=True)
        after = await machine.registry.lease("alias")
        assert (before.served.runtime, after.served.runtime) == (old.made[0], new.made[0])
        assert after.served.names == ("chat", "alias")
        assert machine.states() == {"chat": "loaded", "new": "unloaded"}
        assert machine.registry.resolve(None).model_id == "chat", "it is still the one that is meant"
        before.close()
        after.close()
        await machine.registry.unload("chat", waits=True)
        await machine.use("chat")
        assert (len(old.made), len(new.made)) == (1, 2), "it stays what it has become"


@live
async def test_source_must_be_there_and_one_thing_is_done_at_a_time():
    model = FakeModel("a", 40)
    async with running(model, memory=100) as machine:
        await machine.use("a")
        with pytest.raises(ModelNotFound):
            await machine.registry.load("a", source="b")
        model.gate.clear()
        await machine.registry.load("a", is_reload=True)
        for change in (machine.registry.load("a", is_reload=True), machine.registry.unload("a")):
            with pytest.raises(ModelNotLoaded):
                await change
        model.gate.set()


@live
async def test_server_that_ends_during_a_reload_leaves_nothing():
    model = FakeModel("a", 40)
    async with running(model, memory=100) as machine:
        lease = await machine.registry.lease("a")
        await machine.registry.load("a", is_reload=True, waits=True)
        model.gate.clear()
        await machine.registry.load("a", is_reload=True)
        await until(lambda: len(model.made) == 3)
        await machine.registry.close()
        assert [runtime.num_closes for runtime in model.made] == [1, 1, 1]
        lease.close()


@live
async def test_model_that_is_not_loaded_is_simply_loaded():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(a, b) as machine:
        await machine.registry.load("a", is_reload=True, waits=True)
        await machine.registry.unload("a", waits=True)
        await machine.registry.load("a", source="b", waits=True)
        assert (len(a.made), len(b.made)) == (1, 1)


@live
async def test_model_that_is_not_loaded_stays_what_it_was_if_the_other_one_cannot_be_loaded():
    a, bad = FakeModel("a"), FakeModel("bad")
    async with running(a, bad) as machine:
        bad.measure_error = ModelFileInvalid("truncated")
        with pytest.raises(ModelFileInvalid):
            await machine.registry.load("a", source="bad", waits=True)
        bad.measure_error, bad.errors = None, [ModelFileInvalid("truncated")]
        await settled()
        await machine.registry.load("a", source="bad")
        await until(lambda: machine.states()["a"] == "unloaded")
        assert str(machine.registry.find("a").error) == "truncated"
        await machine.use("a")
        assert (len(a.made), a.num_loaded, len(bad.made)) == (1, 1, 1)
        await machine.registry.unload("a", waits=True)
        await machine.registry.load("a", source="bad", waits=True)
        assert (len(a.made), bad.num_loaded) == (1, 1)


@live
async def test_model_that_is_being_loaded_is_not_made_another_one_under_way():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(a, b) as machine:
        a.gate.clear()
        await machine.registry.load("a")
        await until(lambda: len(a.made) == 1)
        with pytest.raises(ModelNotLoaded, match="loaded or unloaded already"):
            await machine.registry.load("a", source="b", waits=True)
        a.gate.set()
        await machine.use("a")
        assert (len(a.made), len(b.made)) == (1, 0)


@live
@pytest.mark.parametrize("size", [40, 60])
async def test_reload_that_fails_for_an_unknown_reason_fails_and_the_old_model_answers(
    size: int, monkeypatch: pytest.MonkeyPatch
):
    model = FakeModel("a", size)
    async with running(model, memory=100) as machine:
        await machine.use("a")
        begin_with = LoadedModel.start

        async def break_once(_runtime: LoadedModel) -> None:
            monkeypatch.setattr(LoadedModel, "start", begin_with)
            raise RuntimeError("a bug")

        monkeypatch.setattr(LoadedModel, "start", break_once)
        with pytest.raises(StokerError, match="RuntimeError"):
            await machine.registry.load("a", is_reload=True, waits=True)
        await machine.use("a")
        status = machine.registry.find("a")
        assert (status.state, model.num_loaded) == ("loaded", 1)
