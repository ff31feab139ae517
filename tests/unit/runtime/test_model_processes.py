"""Engine processes that are killed while their models come and go: in the end there is one that answers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.backends.cores import environment_of_sharers
from stoker.core.params import SamplingParams
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.protocol import Output, Submit
from stoker.errors import EngineCrashed
from stoker.models.memory_plan import MemoryNeeds
from stoker.runtime.base import Runtime
from stoker.runtime.config import RegistryConfig
from stoker.runtime.local_fleet import LocalFleet
from stoker.runtime.registry import Lease, ModelSpec, Registry
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replicas import ReplicatedRuntime
from tests.unit.runtime.fake_models import live
from tests.waiting import until

CHILD = Path(__file__).parents[1] / "engine" / "scripted_child.py"
QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.001, backoff_max_s=0.01)
MEMORY = 100


class Engines:
    """One model of real processes; `tricks` are what the next of them are told to load instead."""

    def __init__(self, size: int = 60, replicas: int = 1) -> None:
        self.clients: list[EngineClient] = []
        self._replicas = replicas
        self.tricks: list[str] = []
        self._size = size

    def spec(self, name: str) -> ModelSpec:
        return ModelSpec(names=(name,), make=self._make, measure=self._measure)

    async def started(self, count: int) -> EngineClient:
        """The client number `count`, once it has a process."""
        await until(lambda: len(self.clients) >= count and self.clients[count - 1].child_pid is not None)
        return self.clients[count - 1]

    def _make(self, _plan: object) -> Runtime:
        if self._replicas == 1:
            return self._one(repeats=True)
        config = ReplicaConfig(replicas=self._replicas)
        return ReplicatedRuntime(LocalFleet(lambda _number, _first: self._one(repeats=False), config))

    def _one(self, *, repeats: bool) -> Runtime:
        config = EngineConfig(model=self.tricks.pop(0) if self.tricks else "")
        command = (sys.executable, str(CHILD))
        self.clients.append(EngineClient(config, command=command, supervision=QUICK, repeats=repeats))
        return self.clients[-1]

    def _measure(self) -> MemoryNeeds:
        return MemoryNeeds(
            model="scripted",
            ctx_size=1,
            kv_tokens=1,
            parallel=1,
            spare_kv_tokens=0,
            weights_bytes=self._size,
            kv_bytes_per_token=0,
            compute_bytes=0,
        )


def command_of(process: psutil.Process) -> list[str]:
    """Empty for one that has ended and belongs to another test, which has not collected it yet."""
    with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
        return process.cmdline()
    return []


@asynccontextmanager
async def running(**engines: Engines) -> AsyncGenerator[Registry]:
    """A registry that leaves no process and no handle behind."""
    environment_of_sharers()  # makes one file for all children, which stays
    before = psutil.Process().num_fds()
    specs = [each.spec(name) for name, each in engines.items()]
    registry = Registry(specs, RegistryConfig(swap_after_s=0.1), available=lambda: MEMORY)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.close()
    assert all(client.child_pid is None for each in engines.values() for client in each.clients)
    assert [p for p in psutil.Process().children() if str(CHILD) in command_of(p)] == []
    await until(lambda: psutil.Process().num_fds() <= before)  # libzmq closes in the background


async def answer(registry: Registry, model: str, prompt: str = "hi") -> str:
    lease = await registry.lease(model)
    try:
        return await text_of(lease, prompt)
    finally:
        lease.close()


async def text_of(lease: Lease, prompt: str) -> str:
    submit = Submit("r", prompt, SamplingParams(max_tokens=50))
    outputs: list[Any] = [item async for item in lease.served.runtime.generate(submit)]
    return "".join(item.text for item in outputs if isinstance(item, Output))


async def kill(client: EngineClient) -> None:
    assert client.child_pid is not None
    os.kill(client.child_pid, signal.SIGKILL)


@live
async def test_process_that_is_killed_while_it_loads():
    engines = Engines()
    engines.tricks = ["endless"]
    async with running(a=engines) as registry:
        asking = asyncio.ensure_future(answer(registry, "a"))
        await kill(await engines.started(1))
        assert await asking == "an answer."
        assert len(engines.clients) == 2


@pytest.mark.slow
@live
async def test_processes_that_are_killed_during_a_reload_beside():
    engines = Engines(size=40)
    async with running(a=engines) as registry:
        assert await answer(registry, "a") == "an answer."
        engines.tricks = ["endless"]
        reloading = asyncio.ensure_future(registry.load("a", is_reload=True, waits=True))
        await kill(await engines.started(2))
        assert await answer(registry, "a") == "an answer.", "the old one goes on"
        await kill(engines.clients[0])
        await reloading
        assert await answer(registry, "a") == "an answer."
        assert engines.clients[2].child_pid is not None


@live
async def test_process_that_is_killed_while_it_is_swapped_out():
    a, b = Engines(), Engines()
    async with running(a=a, b=b) as registry:
        lease = await registry.lease("a")
        asking = asyncio.ensure_future(answer(registry, "b"))
        await until(lambda: registry.find("b").num_waiting > 0)
        with pytest.raises(EngineCrashed):
            await text_of(lease, "CRASH")
        lease.close()
        assert await asking == "an answer."
        assert await answer(registry, "a") == "an answer."
        assert (len(a.clients), len(b.clients)) == (2, 1)


@live
async def test_process_that_is_killed_while_it_is_drained():
    engines = Engines()
    async with running(a=engines) as registry:
        lease = await registry.lease("a")
        unloading = asyncio.ensure_future(registry.unload("a", waits=True))
        await until(lambda: registry._entries["a"].is_draining)
        await kill(engines.clients[0])
        lease.close()
        await unloading
        assert registry.find("a").state == "unloaded"
        assert await answer(registry, "a") == "an answer."


@live
async def test_process_that_is_killed_while_it_is_closed():
    engines = Engines()
    async with running(a=engines) as registry:
        await answer(registry, "a")
        pid = engines.clients[0].child_pid
        assert pid is not None
        unloading = asyncio.ensure_future(registry.unload("a", waits=True))
        await until(lambda: registry.find("a").served is None)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        await unloading
        assert await answer(registry, "a") == "an answer."


@pytest.mark.slow
@live
async def test_process_that_is_killed_while_it_is_evicted():
    a, b = Engines(), Engines()
    async with running(a=a, b=b) as registry:
        await answer(registry, "a")
        pid = a.clients[0].child_pid
        assert pid is not None
        asking = asyncio.ensure_future(answer(registry, "b"))
        await until(lambda: registry.find("a").served is None)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert await asking == "an answer."
        assert await answer(registry, "a") == "an answer."


@live
async def test_process_that_is_killed_during_a_reload_without_room():
    engines = Engines(size=60)
    async with running(a=engines) as registry:
        await answer(registry, "a")
        engines.tricks = ["endless"]
        reloading = asyncio.ensure_future(registry.load("a", is_reload=True, waits=True))
        await kill(await engines.started(2))
        await reloading
        assert await answer(registry, "a") == "an answer."
        assert len(engines.clients) == 3


@live
async def test_replica_that_is_killed_while_it_starts():
    engines = Engines(replicas=2)
    engines.tricks = ["", "endless"]
    async with running(a=engines) as registry:
        asking = asyncio.ensure_future(answer(registry, "a"))
        await kill(await engines.started(2))
        assert await asking == "an answer."
        (served,) = registry.models
        assert [replica.is_ready for replica in served.runtime.health().replicas.values()] == [True, True]


@live
async def test_process_that_dies_while_it_warms_up():
    """The forward pass of the first token kills it, as memory that is not there would."""
    engines = Engines()
    engines.tricks = ["dies-warming-up"]
    async with running(a=engines) as registry:
        assert await answer(registry, "a") == "an answer."
        assert len(engines.clients) == 2


@live
async def test_old_one_comes_back_if_the_new_one_always_dies():
    engines = Engines(size=60)
    async with running(a=engines) as registry:
        await answer(registry, "a")
        engines.tricks = ["crash"] * 3
        with pytest.raises(EngineCrashed, match="SIGSEGV"):
            await registry.load("a", is_reload=True, waits=True)
        assert await answer(registry, "a") == "an answer."
        assert len(engines.clients) == 5
