"""Replicas that are real processes with scripted engines: killed under load, and gone when the runtime is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.stats import EngineStats
from stoker.engine.supervisor import same_sizes
from stoker.errors import EngineCrashed, ModelFileInvalid, ModelNotLoaded, StokerError
from stoker.runtime.local_fleet import LocalFleet
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replicas import ReplicatedRuntime
from tests.waiting import run, until

COMMAND = (sys.executable, str(Path(__file__).parents[1] / "engine" / "scripted_child.py"))
ANSWER = "an answer."
QUICK = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.01)
GREEDY = SamplingParams(temperature=0)
ENDLESS = SamplingParams(temperature=0, ignore_eos=True)


class Model:
    """A replicated model, and the engines behind it."""

    def __init__(self, replicas: int | str, **config: Any) -> None:
        self.config = EngineConfig(**config)
        self.clients: list[EngineClient] = []
        self.runtime = ReplicatedRuntime(LocalFleet(self._make, ReplicaConfig(replicas=replicas, scale_hold_s=0)))

    def _make(self, number: int, first: ModelCard | None) -> EngineClient:
        config = self.config if first is None else same_sizes(self.config, first)
        client = EngineClient(config, command=COMMAND, supervision=QUICK, repeats=False)
        self.clients.append(client)
        return client

    def kill(self, number: int) -> None:
        pid = self.clients[number].child_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def beats(self) -> list[EngineStats]:
        replicas = self.runtime.health().replicas.values()
        return [replica.heartbeat for replica in replicas if replica.heartbeat is not None]

    async def is_whole(self) -> None:
        await until(lambda: all(replica.is_ready for replica in self.runtime.health().replicas.values()))

    async def answer(self, request_id: str, sampling: SamplingParams = GREEDY) -> str:
        async with aclosing(self.runtime.generate(Submit(request_id, "Q:", sampling))) as events:
            return "".join([event.text async for event in events if isinstance(event, Output)])

    async def begin(self, request_id: str) -> asyncio.Task[None]:
        """A stream that has begun, and is read for as long as it lasts: it would be paused otherwise."""
        stream = self.runtime.generate(Submit(request_id, "Q:", ENDLESS))
        assert isinstance(await anext(stream), Accepted)
        assert isinstance(await anext(stream), Output)
        return asyncio.create_task(read(stream))


async def read(stream: AsyncGenerator[Accepted | Output, None]) -> None:
    async with aclosing(stream):
        async for _ in stream:
            pass


@asynccontextmanager
async def started(replicas: int | str, **config: Any) -> AsyncGenerator[Model]:
    model = Model(replicas, **config)
    others = set(psutil.Process().children(recursive=True))
    try:
        await model.runtime.start()
        yield model
    finally:
        await model.runtime.close()
        ours = set(psutil.Process().children(recursive=True)) - others
        assert not [child for child in ours if child.status() != psutil.STATUS_ZOMBIE]


def test_killed_replica_under_load_ends_only_what_it_had_begun():
    async def test() -> None:
        async with started(2, parallel=1) as model:
            streams = [await model.begin(f"s{number}") for number in range(2)]
            waiting = [asyncio.create_task(model.answer(f"w{number}")) for number in range(8)]
            await until(lambda: sum(replica.num_waiting for replica in model.beats()) == 8)
            states: set[str] = set()
            model.kill(0)
            while not streams[0].done():
                states.add(model.runtime.health().state)
                await asyncio.sleep(0)
            assert isinstance(streams[0].exception(), EngineCrashed)
            assert states == {"ready"}
            assert model.runtime.health().state == "ready"
            assert not streams[1].done(), "the other one goes on"
            streams[1].cancel()
            assert await asyncio.gather(*waiting) == [ANSWER] * 8
            await model.is_whole()
            assert model.runtime.health().num_restarts == 1
            assert await asyncio.gather(*(model.answer(f"a{number}") for number in range(8))) == [ANSWER] * 8

    run(test())


@pytest.mark.slow
def test_all_killed_at_once_lose_nothing_that_had_not_begun():
    async def test() -> None:
        async with started(2, parallel=1) as model:
            streams = [await model.begin(f"s{number}") for number in range(2)]
            waiting = [asyncio.create_task(model.answer(f"w{number}")) for number in range(4)]
            await until(lambda: sum(replica.num_waiting for replica in model.beats()) == 4)
            for number in range(2):
                model.kill(number)
            ends = await asyncio.gather(*streams, return_exceptions=True)
            assert [type(end) for end in ends] == [EngineCrashed] * 2
            assert await asyncio.gather(*waiting) == [ANSWER] * 4
            await model.is_whole()
            assert model.runtime.health().num_restarts == 2

    run(test())


def test_a_prompt_that_kills_takes_no_more_than_two():
    async def test() -> None:
        async with started(3) as model:
            with pytest.raises(EngineCrashed):
                await read(model.runtime.generate(Submit("poison", "CRASH", GREEDY)))
            assert await model.answer("a") == ANSWER
            await model.is_whole()
            assert model.runtime.health().num_restarts == 2

    run(test())


def test_a_model_that_cannot_be_loaded_leaves_no_process() -> None:
    async def test() -> None:
        model = Model(2, model="invalid")
        others = set(psutil.Process().children(recursive=True))
        error: StokerError | None = None
        try:
            await model.runtime.start()
        except ModelFileInvalid as refused:
            error = refused
        assert error is not None
        assert set(psutil.Process().children(recursive=True)) <= others

    run(test())


def test_a_queue_starts_another_process_and_closing_ends_all_of_them():
    async def test() -> None:
        async with started("1-2", parallel=1) as model:
            stream = await model.begin("s")
            waiting = [asyncio.create_task(model.answer(f"w{number}")) for number in range(6)]
            await until(lambda: model.runtime.card.parallel == 2)
            assert await model.answer("late") == ANSWER, "there is a free place now"
            assert await asyncio.gather(*waiting) == [ANSWER] * 6, "for those who waited, too"
            assert len(model.clients) == 2
            other = await model.begin("t")
            waiting = [asyncio.create_task(model.answer(f"v{number}")) for number in range(4)]
            await until(lambda: sum(replica.num_waiting for replica in model.beats()) == 4)
            await model.runtime.close()
            ends = await asyncio.gather(stream, other, *waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [ModelNotLoaded] * 6

    run(test())
