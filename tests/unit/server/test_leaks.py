"""Ten thousand clients that come and leave at once: afterwards nothing of them is left anywhere."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from itertools import cycle, islice
from typing import Any

import pytest
from starlette.requests import Request

from stoker.runtime.request_metrics import RequestWatch
from stoker.server.config import ServerConfig
from stoker.server.generation import Generation
from stoker.server.observe.account import Account
from stoker.server.transport.app import create_app
from stoker.server.transport.sse import EventStream
from tests.unit.server.fake_runtime import RawClient, registry_of, served
from tests.unit.server.test_disconnect import BODIES, Gate, ScriptedRuntime
from tests.waiting import BOUND_S

NUM_CLIENTS = 10_000
AT_ONCE = 10
"""One more than can run and wait."""
OF_ONE_REQUEST = (Generation, RequestWatch, EventStream, Request, Account, RawClient)


class OpenGate(Gate):
    """Lets every step go on."""

    def __call__(self, batch: object) -> None:
        self.num_steps += 1


async def come_and_leave(app: Any, path: str, number: int) -> None:
    """Before anything was answered, or in the middle of a stream."""
    reads = number % 4 == 0
    client = RawClient(app, path, {**BODIES[path], "stream": number % 2 == 0})
    if reads:
        await client.next_body()
    client.leave()
    await client.task


async def everybody(app: Any) -> None:
    paths = cycle(BODIES)
    for first in range(0, NUM_CLIENTS, AT_ONCE):
        batch = enumerate(islice(paths, AT_ONCE), first)
        await asyncio.gather(*(come_and_leave(app, path, number) for number, path in batch))


@pytest.mark.slow
def test_ten_thousand_clients_that_leave_leave_nothing_behind():
    num_threads = threading.active_count()

    async def test() -> None:
        runtime = ScriptedRuntime(OpenGate())
        model = served(runtime)
        try:
            async with asyncio.timeout(BOUND_S):
                await everybody(create_app(registry_of(model), ServerConfig()))
                while (beat := runtime.worker.heartbeat()).num_running or beat.num_waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert runtime.worker._live == {}
            assert runtime.worker._unqueued == {}
            assert runtime.worker._left == set()
            assert beat.kv_used == 0
            assert model.metrics.num_open == 0
            assert sum(model.metrics.ends.values()) > NUM_CLIENTS / 4, "they did come"
            assert asyncio.all_tasks() == {asyncio.current_task()}
        finally:
            await asyncio.to_thread(runtime.worker.close)

    asyncio.run(test())
    gc.collect()
    left = Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, OF_ONE_REQUEST))
    assert not left
    assert threading.active_count() <= num_threads
