"""Names, and the life of models that are loaded when they are asked for."""

import asyncio
from math import inf
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from stoker.errors import (
    EngineCrashed,
    InvalidInput,
    ModelFileInvalid,
    ModelFileNotFound,
    ModelNotFound,
    ModelNotLoaded,
    Overloaded,
    ResourceExhausted,
)
from stoker.runtime.base import Runtime
from stoker.runtime.registry import ModelSpec, Registry, ServedModel
from stoker.runtime.served import names_of_source, served_names
from tests.unit.runtime.fake_models import FakeModel, leaders, live, running, settled
from tests.waiting import until


class CountingRuntime:
    card: ClassVar[None] = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")


def make_registry(**settings: Any) -> Registry:
    registry = Registry(**settings)
    registry.adopt(ServedModel(("tiny", "short"), cast("Runtime", CountingRuntime())))
    return registry


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("smollm2", ("smollm2",)),
        ("/models/Tiny-Q4.gguf", ("Tiny-Q4", "/models/Tiny-Q4.gguf")),
        ("tiny.gguf", ("tiny", "tiny.gguf")),
        ("./exported/", ("exported", "./exported/")),
        ("hf:org/repo", ("hf:org/repo", "repo")),
        ("hf:org/repo:file.gguf", ("hf:org/repo:file.gguf", "file")),
    ],
)
def test_a_model_that_nobody_named_is_called_by_its_last_part(model: str, names: tuple[str, ...]):
    assert names_of_source(model) == names


def test_a_given_name_is_the_id_whatever_it_looks_like():
    assert served_names("team/chat", "b.gguf") == ("team/chat", "chat", "b.gguf")


def test_further_names_come_last_and_once():
    assert names_of_source("a/b.gguf", "b", "c", "") == ("b", "a/b.gguf", "c")


def test_the_current_folder_is_served_under_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama" / "parts"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert names_of_source(".") == ("parts", ".")
    assert names_of_source("../") == ("llama", "../")
    folder.rmdir()
    assert names_of_source(".") == (".",)


@pytest.mark.parametrize("model", ["tiny", "short", "anything", "", None])
def test_any_name_means_the_only_model(model: str | None):
    assert make_registry().resolve(model).model_id == "tiny"


def test_strict_refuses_other_names():
    registry = make_registry(strict=True)
    assert registry.resolve("short").model_id == "tiny"
    assert registry.resolve(None).model_id == "tiny"
    with pytest.raises(ModelNotFound, match="`other`") as caught:
        registry.resolve("other")
    assert caught.value.fields == {"model": "other", "parameter": "model"}


def test_find_is_always_exact():
    assert make_registry().find("short").model_id == "tiny"
    with pytest.raises(ModelNotFound):
        make_registry().find("other")


def test_adopted_runtimes_are_started_and_closed_and_stay():
    async def live() -> None:
        registry = make_registry()
        (served,) = registry.models
        await registry.start()
        with pytest.raises(InvalidInput):
            await registry.unload("tiny")
        with pytest.raises(InvalidInput):
            await registry.load("tiny", is_reload=True)
        await registry.close()
        await registry.close()
        assert cast("Any", served.runtime).calls == ["start", "close"]

    asyncio.run(live())


@live
async def test_names_of_several_models_are_exact():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(specs=[a.spec(names=("a", "alias")), b.spec()]) as machine:
        machine.models = [a, b]
        lease = await machine.registry.lease("alias")
        assert lease.served.names == ("a", "alias")
        with pytest.raises(ModelNotFound, match="Served: a, b"):
            await machine.registry.lease("other")
        with pytest.raises(InvalidInput, match=r"several models.*Served: a, b"):
            await machine.registry.lease(None)
        lease.close()


@live
async def test_who_names_no_model_means_the_first_that_is_loaded_at_the_start():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(specs=[a.spec(), b.spec(loads_at_start=True)]) as machine:
        machine.models = [a, b]
        assert machine.registry.resolve("").model_id == "b"


@live
async def test_model_is_loaded_when_it_is_first_asked_for():
    model = FakeModel("a")
    async with running(model) as machine:
        assert machine.states() == {"a": "unloaded"}
        assert machine.registry.lease_loaded("a") is None
        model.gate.clear()
        tasks = [machine.ask("a") for _ in range(5)]
        await until(lambda: len(model.made) == 1)
        assert machine.states() == {"a": "loading"}
        assert machine.registry.find("a").num_waiting == 5
        model.gate.set()
        leases = await asyncio.gather(*tasks)
        assert {lease.served.runtime for lease in leases} == {model.made[0]}
        assert len(model.made) == 1
        assert (machine.states(), machine.registry.find("a").num_loads) == ({"a": "loaded"}, 1)
        lease = machine.registry.lease_loaded("a")
        assert lease is not None
        for each in (*leases, lease):
            each.close()


@live
async def test_nothing_is_loaded_before_the_server_is_ready_and_after_its_end():
    model = FakeModel("a")
    async with running(model) as machine:
        machine.registry._is_open = False
        with pytest.raises(ModelNotLoaded, match="still loading"):
            await machine.registry.lease("a")
        await machine.registry.close()
        with pytest.raises(ModelNotLoaded, match="stopping"):
            await machine.registry.lease("a")
    assert model.made == []


@live
async def test_models_of_the_start_are_loaded_as_far_as_they_fit():
    models = [FakeModel("a", 60), FakeModel("b", 60), FakeModel("c", 30)]
    specs = [model.spec(loads_at_start=True) for model in models]
    async with running(specs=specs, memory=100) as machine:
        machine.models = models
        assert machine.states() == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        machine.advance(60)
        await machine.use("b")
        assert machine.states()["b"] == "loaded"


@live
async def test_start_fails_if_its_first_model_does_not_fit_or_one_is_broken():
    for specs, error in (
        ([FakeModel("a", 200).spec(loads_at_start=True)], ResourceExhausted),
        ([FakeModel("a", measure_error=ModelFileNotFound("gone")).spec(loads_at_start=True)], ModelFileNotFound),
        ([FakeModel("a", errors=[ModelFileInvalid("bad")]).spec(loads_at_start=True)], ModelFileInvalid),
    ):
        with pytest.raises(error):
            async with running(specs=specs, memory=100):
                pass


@live
async def test_least_recently_used_that_frees_enough_leaves():
    models = [FakeModel("a", 10), FakeModel("b", 40), FakeModel("c", 40), FakeModel("d", 45)]
    async with running(*models, memory=100) as machine:
        for name in "abc":
            await machine.use(name)
            machine.advance(1)
        await machine.use("d")
        assert machine.states() == {"a": "loaded", "b": "unloaded", "c": "loaded", "d": "loaded"}
        assert machine.registry.find("b").unloads == {"evicted": 1}


@live
async def test_pinned_models_stay_and_the_error_says_so():
    a, b, c = FakeModel("a", 60), FakeModel("b", 30), FakeModel("c", 50)
    async with running(specs=[a.spec(is_pinned=True), b.spec(), c.spec()], memory=100) as machine:
        machine.models = [a, b, c]
        await machine.use("a")
        await machine.use("b")
        machine.advance(60)
        with pytest.raises(ResourceExhausted, match="no other model may be unloaded for it; a stay") as caught:
            await machine.use("c")
        assert caught.value.fields["needed_bytes"] == 50
        assert machine.states() == {"a": "loaded", "b": "loaded", "c": "unloaded"}


@live
async def test_model_that_nobody_else_can_make_room_for_costs_nobody_his_place():
    a, b = FakeModel("a", 60), FakeModel("b", 200)
    async with running(a, b, memory=100) as machine:
        await machine.use("a")
        with pytest.raises(ResourceExhausted):
            await machine.use("b")
        assert machine.states()["a"] == "loaded"


@live
async def test_number_of_models_may_be_bounded_too():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(a, b, models_max=1) as machine:
        await machine.use("a")
        machine.advance(60)
        await machine.use("b")
        assert machine.states() == {"a": "unloaded", "b": "loaded"}
        assert (a.num_loaded, b.num_loaded) == (0, 1)


@live
async def test_plan_takes_what_is_left_and_its_promise_counts():
    a, b = FakeModel("a", 20, pool_token_size=5), FakeModel("b", 30)
    async with running(a, b, memory=100) as machine:
        await machine.use("a")
        plan = a.made[0].plan
        assert plan is not None
        assert (plan.kv_tokens, plan.total_bytes) == (17, 100), "as large a pool as fits"
        machine.advance(60)
        await machine.use("b")
        assert machine.states() == {"a": "unloaded", "b": "loaded"}, "though most of the pool was never touched"


@live
async def test_memory_that_others_have_taken_is_not_there():
    a, b = FakeModel("a", 40), FakeModel("b", 40)
    async with running(a, b, memory=100) as machine:
        await machine.use("a")
        machine.advance(60)
        machine.memory = 70
        await machine.use("b")
        assert machine.states() == {"a": "unloaded", "b": "loaded"}


@live
async def test_failed_load_is_told_to_all_who_wait_and_brings_back_who_left_for_it():
    a, b = FakeModel("a", 60), FakeModel("b", 60, errors=[ModelFileInvalid("the file lies", path="x")])
    async with running(a, b, memory=100) as machine:
        await machine.use("a")
        machine.advance(60)
        tasks = [machine.ask("b") for _ in range(3)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [(type(error), str(error)) for error in errors] == [(ModelFileInvalid, "the file lies")] * 3
        assert len({id(error) for error in errors}) == 3
        await until(lambda: machine.states()["a"] == "loaded")
        assert (len(a.made), len(b.made)) == (2, 1)
        status = machine.registry.find("b")
        assert status.error is not None
        with pytest.raises(ModelFileInvalid):
            await machine.use("b")
        assert len(b.made) == 1, "not tried again at once: it would cost the other one its place again"
        machine.advance(60)
        await machine.use("b")
        assert machine.states() == {"a": "unloaded", "b": "loaded"}


@live
async def test_process_that_dies_while_it_loads_is_started_again():
    model = FakeModel("a", errors=[EngineCrashed("killed"), EngineCrashed("killed")])
    async with running(model) as machine:
        await machine.use("a")
        assert len(model.made) == 3
        assert [runtime.num_closes for runtime in model.made] == [1, 1, 0]


@live
async def test_process_that_always_dies_is_given_up():
    model = FakeModel("a", errors=[EngineCrashed("killed")] * 3)
    async with running(model) as machine:
        with pytest.raises(EngineCrashed):
            await machine.use("a")
        assert len(model.made) == 3


@live
async def test_model_expires():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(specs=[a.spec(keep_alive_s=300), b.spec()]) as machine:
        machine.models = [a, b]
        lease = await machine.registry.lease("a")
        await machine.use("b")
        machine.advance(1000)
        await settled()
        assert machine.registry.find("a").expires_in_s == 300, "it is in use"
        lease.close()
        machine.advance(299)
        await settled()
        assert (machine.states()["a"], machine.registry.find("a").expires_in_s) == ("loaded", 1)
        machine.advance(1)
        await until(lambda: machine.states()["a"] == "unloaded")
        assert machine.registry.find("a").unloads == {"expired": 1}
        machine.advance(1e9)
        await settled()
        assert (machine.states()["b"], machine.registry.find("b").expires_in_s) == ("loaded", inf)


@live
async def test_request_says_how_long_its_model_stays():
    model = FakeModel("a")
    async with running(specs=[model.spec(keep_alive_s=300)]) as machine:
        machine.models = [model]
        await machine.use("a", keep_alive_s=inf)
        machine.advance(1000)
        await machine.use("a")
        assert machine.registry.find("a").expires_in_s == inf, "the next one says nothing"
        await machine.use("a", keep_alive_s=0.0)
        await until(lambda: machine.states()["a"] == "unloaded")
        await machine.use("a")
        assert machine.registry.find("a").expires_in_s == 300, "what was said has gone with it"


@live
async def test_pinned_model_stays_whatever_a_request_says():
    model = FakeModel("a")
    async with running(specs=[model.spec(is_pinned=True, keep_alive_s=5)]) as machine:
        machine.models = [model]
        await machine.use("a", keep_alive_s=0.0)
        machine.advance(1000)
        await settled()
        assert machine.states()["a"] == "loaded"
        await machine.registry.unload("a", waits=True)
        assert machine.states()["a"] == "unloaded", "whoever runs the server may"


@live
async def test_unloading_waits_for_running_requests_and_keeps_later_ones_waiting():
    model = FakeModel("a")
    async with running(model) as machine:
        lease = await machine.registry.lease("a")
        await machine.registry.unload("a")
        later = machine.ask("a")
        await settled()
        assert (model.num_loaded, later.done()) == (1, False)
        lease.close()
        (await later).close()
        assert [runtime.num_closes for runtime in model.made] == [1, 0]


@live
async def test_unloading_does_not_wait_for_ever():
    model = FakeModel("a")
    async with running(model, swap_drain_s=0.01) as machine:
        lease = await machine.registry.lease("a")
        await machine.registry.unload("a", waits=True)
        assert model.num_loaded == 0
        lease.close()


@live
async def test_model_can_be_unloaded_while_it_loads():
    model = FakeModel("a")
    async with running(model) as machine:
        model.gate.clear()
        task = machine.ask("a")
        await until(lambda: bool(model.made))
        await machine.registry.unload("a", waits=True)
        with pytest.raises(ModelNotLoaded, match="unloaded while"):
            await task
        assert (machine.states(), model.made[0].num_closes) == ({"a": "unloaded"}, 1)


@live
async def test_load_and_unload_by_name():
    model = FakeModel("a")
    async with running(model) as machine:
        await machine.registry.load("a")
        assert machine.states() == {"a": "loading"}
        await machine.registry.load("a", waits=True)
        await machine.registry.load("a", waits=True)
        assert (machine.states(), len(model.made)) == ({"a": "loaded"}, 1)
        await machine.registry.unload("a", waits=True)
        await machine.registry.unload("a", waits=True)
        assert machine.states() == {"a": "unloaded"}
        for verb in (machine.registry.load, machine.registry.unload):
            with pytest.raises(ModelNotFound):
                await verb("other")


@live
async def test_load_that_is_waited_for_raises_its_error():
    model = FakeModel("a", errors=[ModelFileInvalid("bad")])
    async with running(model) as machine:
        with pytest.raises(ModelFileInvalid):
            await machine.registry.load("a", waits=True)
        await machine.registry.load("a", waits=True)
        assert machine.states() == {"a": "loaded"}, "an order is tried at once"


@live
async def test_without_autoload_only_an_order_loads():
    async with running(FakeModel("a"), autoload=False) as machine:
        with pytest.raises(ModelNotLoaded, match="/models/load"):
            await machine.use("a")
        await machine.registry.load("a", waits=True)
        await machine.use("a")


@live
async def test_queue_is_bounded_in_number_and_time():
    model = FakeModel("a")
    async with running(model, max_load_queue=2, load_wait_s=0.05) as machine:
        model.gate.clear()
        tasks = [machine.ask("a") for _ in range(3)]
        with pytest.raises(Overloaded, match="2 requests wait"):
            await tasks[2]
        for task in tasks[:2]:
            with pytest.raises(Overloaded, match=r"not loaded within 0\.05 s") as caught:
                await task
            assert caught.value.fields["retry_after_s"] == 10
        assert machine.registry.find("a").num_waiting == 0
        model.gate.set()


@live
async def test_client_that_leaves_in_the_moment_it_is_let_in_holds_nothing():
    model = FakeModel("a")
    async with running(model) as machine:
        model.gate.clear()
        task = machine.ask("a")
        await until(lambda: bool(model.made))
        entry = machine.registry._entries["a"]
        model.gate.set()
        await until(lambda: entry.instance is not None)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert entry.instance is not None
        assert entry.instance.is_idle


@live
async def test_everything_that_waits_ends_with_the_server():
    model = FakeModel("a")
    async with running(model) as machine:
        model.gate.clear()
        task = machine.ask("a")
        await until(lambda: bool(model.made))
        await machine.registry.close()
        with pytest.raises(ModelNotLoaded, match="stopping"):
            await task


@live
async def test_models_of_a_folder_come_and_go():
    folder = {"a": FakeModel("a")}

    def discover() -> list[ModelSpec]:
        return [model.spec(names=(f"/m/{name}.gguf", name)) for name, model in folder.items()]

    async with running(discover=discover) as machine:
        machine.models = [*folder.values()]
        await machine.use("a")
        with pytest.raises(ModelNotFound):
            await machine.use("b")
        folder["b"] = FakeModel("b")
        machine.models.append(folder["b"])
        with pytest.raises(ModelNotFound):
            await machine.use("b")
        machine.advance(1)
        await machine.use("b")
        folder.clear()
        await machine.registry.unload("b", waits=True)
        await machine.registry.refresh()
        assert machine.states() == {"/m/a.gguf": "loaded"}, "what is loaded stays until it is unloaded"


@live
async def test_server_without_models_says_how_to_get_one_and_serves_it_once_it_is_there():
    folder: list[ModelSpec] = []
    a = FakeModel("a")
    async with running(discover=lambda: folder) as machine:
        machine.models = [a]
        for name in (None, "a"):
            with pytest.raises(ModelNotFound, match="No model is here yet: `stoker pull MODEL`"):
                await machine.use(name)
        folder.append(a.spec())
        machine.advance(1)
        await machine.use(None)
        assert machine.states() == {"a": "loaded"}


@live
async def test_name_that_is_taken_stays_whose_it_is():
    given, found = FakeModel("a"), FakeModel("a")
    specs = [
        found.spec(names=("/m/a.gguf", "a")),
        found.spec(names=("a", "z")),
        found.spec(names=("twice",), path="/first"),
        found.spec(names=("twice",), path="/second"),
    ]
    async with running(specs=[given.spec()], discover=lambda: specs) as machine:
        machine.models = [given, found]
        statuses = machine.registry.statuses()
        assert [status.spec.names for status in statuses] == [("a",), ("/m/a.gguf",), ("twice",)]
        assert machine.registry.find("twice").spec.path == "/first"


@live
async def test_model_that_has_become_another_one_stays_that_when_the_folder_is_looked_at():
    a, b = FakeModel("a"), FakeModel("b")
    async with running(discover=lambda: [a.spec(), b.spec()]) as machine:
        machine.models = [a, b]
        await machine.registry.load("a", source="b", waits=True)
        await machine.registry.unload("a", waits=True)
        await machine.registry.refresh()
        await machine.use("a")
        assert (len(a.made), len(b.made)) == (0, 2)


@live
async def test_model_that_could_not_become_another_one_goes_with_its_file():
    a, bad = FakeModel("a"), FakeModel("bad")
    folder = [a.spec(), bad.spec()]
    async with running(discover=lambda: folder) as machine:
        machine.models = [a, bad]
        bad.errors = [ModelFileInvalid("truncated")]
        with pytest.raises(ModelFileInvalid):
            await machine.registry.load("a", source="bad", waits=True)
        await settled()
        del folder[0]
        await machine.registry.refresh()
        assert machine.states() == {"bad": "unloaded"}


@live
async def test_lease_that_is_closed_twice_ends_once():
    model = FakeModel("a")
    async with running(model) as machine:
        one, other = await machine.registry.lease("a"), await machine.registry.lease("a")
        one.close()
        one.close()
        await machine.registry.unload("a")
        await settled()
        assert model.num_loaded == 1
        other.close()
        await until(lambda: model.num_loaded == 0)


@live
async def test_one_of_many_waiting_models_that_fits_does_not_wait_for_those_that_do_not():
    big, huge, small = FakeModel("big", 80), FakeModel("huge", 90), FakeModel("small", 10)
    async with running(big, huge, small, memory=100) as machine:
        lease = await machine.registry.lease("big")
        waiting = machine.ask("huge")
        await settled()
        await machine.use("small")
        assert (leaders([waiting]), machine.states()["small"]) == (0, "loaded")
        lease.close()
        machine.advance(1)
        (await waiting).close()
        assert machine.states() == {"big": "unloaded", "huge": "loaded", "small": "loaded"}


@live
async def test_request_that_waits_for_a_model_whose_file_goes_is_told_so():
    a, b = FakeModel("a", 60), FakeModel("b", 60)
    folder = [a.spec(), b.spec()]
    async with running(discover=lambda: folder, memory=100) as machine:
        machine.models = [a, b]
        busy = await machine.registry.lease("a")
        waiting = await machine.queued("b")
        del folder[1]
        await machine.registry.refresh()
        with pytest.raises(ModelNotLoaded, match="removed"):
            await waiting
        busy.close()
