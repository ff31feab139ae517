"""Several llama-servers of one model: one name, and one of them may die."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from stoker.engine.config import SupervisionConfig
from stoker.engine.protocol import Output
from stoker.engine.question_messages import ListSlots
from stoker.errors import ConfigError, EngineCrashed
from stoker.runtime.base import Runtime
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.replica_config import ReplicaConfig
from stoker.serving import create_runtime
from stoker.text.volatile import VolatileHeaders
from tests.unit.runtime.llama_server.fake import QUICK, Fake, ask, event
from tests.waiting import run, until


def replicas(fake: Fake, supervision: SupervisionConfig = QUICK, **engine: object) -> Runtime:
    config = RuntimeConfig(runtime="llama-server", llama_server_path=str(fake.path))
    return create_runtime(
        fake.config(parallel=4, threads=2, **engine),
        VolatileHeaders(()),
        supervision,
        ReplicaConfig(replicas=2),
        config,
    )


async def texts(runtime: Runtime, request_id: str) -> str:
    items = [item async for item in runtime.generate(ask(request_id=request_id))]
    return "".join(item.text for item in items if isinstance(item, Output))


def test_requests_go_to_both_and_the_machine_is_divided(fake: Fake):
    fake.plan()

    async def test() -> None:
        runtime = replicas(fake)
        try:
            card = await runtime.start()
            assert card.parallel == 4
            said = await asyncio.gather(*(texts(runtime, f"r{number}") for number in range(4)))
            assert said == ["Hello"] * 4
            assert len((await runtime.ask(ListSlots())).slots) == 0
        finally:
            await runtime.close()
        assert not [pid for pid in fake.pids() if psutil.pid_exists(pid)]

    run(test())
    commands = [entry["command"] for entry in fake.asked()]
    assert [command[command.index("--parallel") + 1] for command in commands] == ["2", "2"]
    assert [command[command.index("--threads") + 1] for command in commands] == ["1", "1"]
    assert len({command[command.index("--ctx-size") + 1] for command in commands}) == 1


def test_one_that_is_killed_ends_what_it_had_begun_and_no_more(fake: Fake):
    fake.plan(answer=[event("x", tokens=[1], tokens_predicted=1), "hang"])
    times = SupervisionConfig(heartbeat_every_s=0.05, backoff_min_s=0.5, backoff_max_s=0.5)

    async def test() -> None:
        runtime = replicas(fake, times)
        try:
            await runtime.start()
            running = [asyncio.ensure_future(texts(runtime, f"r{number}")) for number in range(2)]
            await until(lambda: len(fake.asked("/completion")) == 2)
            os.kill(fake.pids()[0], signal.SIGKILL)
            done, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            (ended,) = done
            assert isinstance(ended.exception(), EngineCrashed)
            fake.plan()
            assert await texts(runtime, "next") == "Hello"
            assert runtime.health().is_ready
            for other in others:
                other.cancel()
            await asyncio.wait(others)
            await until(lambda: all(replica.is_ready for replica in runtime.health().replicas.values()))
        finally:
            await runtime.close()

    run(test())
    assert len(fake.pids()) == 3


def test_what_llama_server_cannot_do_is_said_before_anything_starts(fake: Fake, tmp_path: Path):
    with pytest.raises(ConfigError, match="--cache-dir is not available"):
        replicas(fake, kv_cache_dir=str(tmp_path))
    assert not fake.pids()
