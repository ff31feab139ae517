"""How often a llama-server is looked at while it starts, and how long the next one waits when it has failed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from stoker.engine.config import SupervisionConfig
from stoker.errors import EngineCrashed, ModelNotLoaded
from stoker.runtime.external import incarnation, supervisor
from stoker.runtime.external.client import BrokenOff, ServerClient
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.external.incarnation import Incarnation
from stoker.runtime.external.process import ServerProcess
from stoker.runtime.external.supervisor import ServerSupervisor
from stoker.runtime.llama_server.binary import Binary
from stoker.runtime.llama_server.model_file import Task
from stoker.runtime.llama_server.program import Order
from tests.waiting import run

ORDER = Order(Binary(Path("/x"), "1", frozenset()), (), (), Task.TEXT, start_s=120.0)
ID = "stoker-1"


class StartingProcess:
    """Runs, and takes note of how long it was left alone; no time passes."""

    def __init__(self) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.pauses: list[float] = []

    async def wait(self, wait_s: float) -> bool:
        self.pauses.append(round(wait_s, 6))
        return False

    def last_words(self) -> str:
        return ""


class DeafClient:
    """Answers nothing but the last one of so many probes."""

    def __init__(self, num_probes: int) -> None:
        self.num_left = num_probes
        self.limits: list[float] = []

    async def get(self, path: str, limit_s: float) -> bytes:
        self.limits.append(limit_s)
        self.num_left -= path == "/health"
        if self.num_left:
            raise BrokenOff("nobody listens")
        return b'{"data": [{"id": "%s"}]}' % ID.encode()


@pytest.mark.parametrize("is_slow", [False, True])
def test_it_is_looked_at_after_pauses_that_double(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    if is_slow:
        monkeypatch.setattr(incarnation, "_TELL_EVERY_S", 0.0)

    async def test() -> None:
        process, client = StartingProcess(), DeafClient(8)
        found = Incarnation(cast("ServerProcess", process), cast("ServerClient", client))
        await found._become_ready(ORDER, ID, 1)
        assert process.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2]
        assert set(client.limits) == {3.0}

    run(test())
    assert ("has not answered yet: 0 of 120 s" in caplog.text) is is_slow


def test_it_has_two_minutes_unless_told_otherwise():
    assert RuntimeConfig().llama_server_start_s == 120

    async def test() -> None:
        process, client = StartingProcess(), DeafClient(-1)
        found = Incarnation(cast("ServerProcess", process), cast("ServerClient", client))
        with pytest.raises(ModelNotLoaded, match="not ready within 0 s"):
            await found._become_ready(replace(ORDER, start_s=0), ID, 1)
        assert process.pauses == [0]

    run(test())


class EndedProcess(StartingProcess):
    """Ended as soon as it answered."""

    pid = 1

    async def wait(self, wait_s: float) -> bool:
        await asyncio.sleep(0)
        return True

    def describe_end(self) -> str:
        return "exited with code 1"

    async def stop(self) -> None:
        pass


class ClosedClient:
    async def close(self) -> None:
        pass


def test_pauses_between_two_starts_double(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    async def test() -> None:
        starts: list[bool] = []
        is_enough = asyncio.Event()

        async def start(_order: Order) -> Incarnation:
            starts.append(len(starts) % 2 == 0)
            if len(starts) > 6:
                is_enough.set()
            if not starts[-1]:
                raise EngineCrashed("llama-server exited with code 2")
            return Incarnation(cast("ServerProcess", EndedProcess()), cast("ServerClient", ClosedClient()))

        async def look(_incarnation: Incarnation) -> None:
            pass

        monkeypatch.setattr(supervisor.Incarnation, "start", start)
        times = SupervisionConfig(backoff_min_s=0.001, backoff_max_s=0.01)
        supervised = ServerSupervisor(ORDER, look, lambda: 0.0, times)
        await supervised.start()
        await is_enough.wait()
        await supervised.close()

    run(test())
    pauses = [cast("tuple[object, ...]", r.args)[2] for r in caplog.records if "starting another" in r.msg]
    assert pauses[:6] == [0.001, 0.002, 0.004, 0.008, 0.01, 0.01]
