"""Two models that do not fit beside each other, and requests for both."""

import asyncio
from collections import Counter
from itertools import pairwise

from stoker.runtime.registry import Lease
from tests.unit.runtime.fake_models import FakeModel, Machine, leaders, live, running, settled
from tests.waiting import until

BOUND_S = 5.0


def pair() -> tuple[FakeModel, FakeModel]:
    return FakeModel("a", 60), FakeModel("b", 60)


async def served(machine: Machine, model: str, log: list[str]) -> None:
    """One request, with a moment in which it is answered."""
    lease = await machine.registry.lease(model)
    log.append(lease.served.model_id)
    await settled()
    lease.close()


def num_swaps(log: list[str]) -> int:
    return sum(before != after for before, after in pairwise(log))


@live
async def test_eight_requests_for_each_of_two_models_take_one_swap():
    async with running(*pair(), memory=100) as machine:
        log: list[str] = []
        tasks = [asyncio.ensure_future(served(machine, "ab"[i % 2], log)) for i in range(16)]
        await until(lambda: log.count("a") == 8)
        await settled()
        machine.advance(1)
        await asyncio.gather(*tasks)
        assert log == ["a"] * 8 + ["b"] * 8
        loads = {status.model_id: status.num_loads for status in machine.registry.statuses()}
        assert loads == {"a": 1, "b": 1}


@live
async def test_model_in_use_goes_on_taking_requests_until_its_bound():
    a, b = pair()
    async with running(a, b, memory=100) as machine:
        lease = await machine.registry.lease("a")
        waiting = await machine.queued("b")
        machine.advance(BOUND_S - 1)
        await machine.use("a")
        machine.advance(1)
        later = [machine.ask("a") for _ in range(3)]
        await settled()
        assert leaders([waiting, *later]) == 0, "a takes no more, and b waits for the one that runs"
        assert machine.states()["a"] == "loaded"
        lease.close()
        (await waiting).close()
        assert (a.num_loaded, b.num_loaded) == (0, 1)
        machine.advance(1)
        for each in await asyncio.gather(*later):
            each.close()
        assert [len(a.made), len(b.made)] == [2, 1]


@live
async def test_model_in_use_takes_so_many_requests_and_no_more():
    async with running(*pair(), memory=100, swap_after_requests=3) as machine:
        lease = await machine.registry.lease("a")
        waiting = await machine.queued("b")
        for _ in range(3):
            await machine.use("a")
            machine.advance(0.01)
            await settled()
        later = machine.ask("a")
        await settled()
        assert leaders([waiting, later]) == 0
        lease.close()
        (await waiting).close()
        machine.advance(1)
        (await later).close()


@live
async def test_short_pause_between_two_requests_is_no_reason_to_swap():
    async with running(*pair(), memory=100) as machine:
        await machine.use("a")
        waiting = await machine.queued("b")
        for _ in range(10):
            machine.advance(0.2)
            await settled()
            await machine.use("a")
        assert leaders([waiting]) == 0
        machine.advance(0.25)
        (await waiting).close()


@live
async def test_model_that_was_just_loaded_has_its_bound_before_it_must_leave_again():
    a, b = pair()
    async with running(a, b, memory=100) as machine:
        lease = await machine.registry.lease("a")
        waiting = await machine.queued("b")
        machine.advance(BOUND_S)
        back = await machine.queued("a")
        lease.close()
        lease = await waiting
        await until(lambda: machine.registry._entries["a"].is_measured)
        machine.advance(BOUND_S - 1)
        await settled()
        await machine.use("b")
        assert leaders([back]) == 0, "it has waited longer than that, but b has not had its bound"
        machine.advance(1)
        await settled()
        refused = machine.ask("b")
        await settled()
        assert leaders([refused]) == 0
        lease.close()
        (await back).close()
        machine.advance(1)
        (await refused).close()


@live
async def test_nobody_starves_and_swaps_are_bounded_under_endless_requests_for_three_models():
    models = [FakeModel(name, 60) for name in "abc"]
    async with running(*models, memory=100, swap_after_requests=10**6) as machine:
        log: list[str] = []
        is_over = asyncio.Event()

        async def client(model: str) -> None:
            while not is_over.is_set():
                await served(machine, model, log)

        clients = [asyncio.ensure_future(client(name)) for name in "abcabc"]
        num_bounds = 12
        for _ in range(num_bounds):
            for _ in range(10):
                machine.advance(BOUND_S / 10)
                await asyncio.sleep(0.001)
                await settled()
        is_over.set()
        while any(not task.done() for task in clients):
            machine.advance(BOUND_S)
            await asyncio.sleep(0)
        counts = Counter(log)
        assert min(counts.values()) > 10, counts
        assert num_swaps(log) <= num_bounds + 3


@live
async def test_model_that_nobody_waits_for_any_more_costs_nobody_his_place():
    a, b = pair()
    async with running(a, b, memory=100) as machine:
        lease = await machine.registry.lease("a")
        waiting = await machine.queued("b")
        machine.advance(BOUND_S)
        await until(lambda: not machine.registry._entries["a"].takes_requests)
        kept_out = machine.ask("a")
        await settled()
        assert leaders([kept_out]) == 0
        waiting.cancel()
        (await kept_out).close()
        lease.close()
        machine.advance(60)
        await settled()
        assert (a.num_loaded, len(b.made)) == (1, 0)


@live
async def test_several_leave_for_a_large_one_and_only_when_all_can():
    small = [FakeModel(name, 30) for name in "abc"]
    large = FakeModel("large", 90)
    async with running(*small, large, memory=100) as machine:
        leases: list[Lease] = [await machine.registry.lease(model.name) for model in small]
        waiting = await machine.queued("large")
        machine.advance(BOUND_S)
        for lease in leases[:2]:
            lease.close()
            await settled()
        assert machine.states() == {"a": "loaded", "b": "loaded", "c": "loaded", "large": "loading"}
        leases[2].close()
        (await waiting).close()
        assert machine.states() == {"a": "unloaded", "b": "unloaded", "c": "unloaded", "large": "loaded"}


@live
async def test_younger_wish_does_not_take_what_an_older_one_is_collecting():
    models = [FakeModel("a", 30), FakeModel("b", 30), FakeModel("large", 60), FakeModel("small", 30)]
    async with running(*models, memory=60) as machine:
        await machine.use("a")
        lease = await machine.registry.lease("b")
        older = await machine.queued("large")
        younger = await machine.queued("small")
        machine.advance(BOUND_S)
        await settled()
        assert machine.states()["a"] == "loaded", "it waits for b, to leave with it"
        assert leaders([older, younger]) == 0
        lease.close()
        (await older).close()
        assert leaders([younger]) == 0
        machine.advance(1)
        (await younger).close()


@live
async def test_two_models_do_not_count_on_the_same_memory():
    models = [FakeModel("a", 60), FakeModel("b", 60), FakeModel("c", 60)]
    b, c = models[1:]
    async with running(*models, memory=100) as machine:
        await machine.use("a")
        machine.advance(60)
        b.gate.clear()
        c.gate.clear()
        waiting = [machine.ask("b"), machine.ask("c")]
        await until(lambda: len(b.made) == 1)
        await settled()
        assert len(c.made) == 0, "b has the place of a"
        b.gate.set()
        (await waiting[0]).close()
        machine.advance(1)
        await until(lambda: len(c.made) == 1)
        c.gate.set()
        (await waiting[1]).close()
        assert [model.num_loaded for model in models] == [0, 0, 1]


@live
async def test_memory_of_one_that_is_leaving_is_not_given_to_a_third():
    a, b, c = FakeModel("a", 60), FakeModel("b", 60), FakeModel("c", 40)
    async with running(a, b, c, memory=100) as machine:
        await machine.use("a")
        a.close_gate.clear()
        await machine.registry.unload("a")
        await until(lambda: machine.states()["a"] == "unloaded")
        machine.memory = 200  # the system would have it
        waiting = await machine.queued("b")
        assert b.made == []
        a.close_gate.set()
        (await waiting).close()


@live
async def test_place_is_free_only_when_the_process_has_ended():
    a, b = pair()
    async with running(a, b, memory=100) as machine:
        await machine.use("a")
        machine.advance(60)
        a.close_gate.clear()
        waiting = machine.ask("b")
        await until(lambda: a.made[0].num_closes == 1)
        await settled()
        assert b.made == []
        a.close_gate.set()
        (await waiting).close()
