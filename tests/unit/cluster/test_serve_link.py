"""The link of a front to a replica uses the direct connection for all that fits, and Ray Serve for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from stoker.cluster.direct import Entrance
from stoker.cluster.handover import frames_through_ray
from stoker.cluster.messages import encode
from stoker.cluster.session import Session
from stoker.core.params import SamplingParams
from stoker.engine.protocol import Submit
from tests.e2e.clusters import needs_ray
from tests.unit.runtime.fake_replica import FakeReplica
from tests.waiting import run, until

pytestmark = [needs_ray, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of Ray, at its import
HOST, PORTS = "127.0.0.1", range(32_000, 32_768)


class Handle:
    """A handle of Ray Serve, and the replica at its other end."""

    def __init__(self, entrance: Entrance) -> None:
        self.fake = FakeReplica(0, None)
        self.fake.state = "ready"
        self.session: Session | None = None
        self.told: list[int] = []
        """Sizes of the calls with orders."""
        self._entrance = entrance

    @property
    def connect(self) -> Handle:
        return self

    @property
    def tell(self) -> Tell:
        return Tell(self)

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, _session: str, to: str) -> Response:
        assert to == "replica"
        return Response(self._frames())

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        ticket = self._entrance.ticket()
        self.session = Session(self.fake, HOST, ticket=ticket)
        async with aclosing(frames_through_ray(self.session, self._entrance, ticket)) as frames:
            async for frame in frames:
                yield encode(frame)


class Tell:
    """The method `tell` of a handle."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def remote(self, _session: str, part: bytes, to: str, *, has_more: bool) -> bool:
        assert to == "replica"
        assert self._handle.session is not None
        self._handle.told.append(len(part))
        self._handle.session.take(part, has_more=has_more)
        return True


class Response:
    """The response to a call of a generator. Ray takes what it yields at once."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self._coming: asyncio.Queue[bytes] = asyncio.Queue()
        self._taking = asyncio.ensure_future(self._take(frames))

    async def _take(self, frames: AsyncGenerator[bytes, None]) -> None:
        async with aclosing(frames):
            async for frame in frames:
                self._coming.put_nowait(frame)

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> bytes:
        return await self._coming.get()

    def cancel(self) -> None:
        self._taking.cancel()


@pytest.mark.parametrize(
    ("ports", "long", "num_calls"),
    [(PORTS, 10, 0), (PORTS, 5000, 3), (range(0), 10, 2), (range(0), 5000, 4)],
    ids=["all fits", "one is too long", "no direct connection", "no direct connection, and one is long"],
)
def test_orders_take_the_direct_connection_if_there_is_one_and_they_fit(
    ports: range, long: int, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.cluster import front
    from stoker.cluster.remote import RemoteEngine

    monkeypatch.setattr(front, "MAX_BYTES", 4000)
    monkeypatch.setattr(front, "CALL_BYTES", 2000)

    async def test() -> None:
        entrance = Entrance(HOST, ports)
        await entrance.open()
        handle: Any = Handle(entrance)
        link = front.ServeLink(handle, "replica")
        remote = RemoteEngine(link)
        await remote.start()
        await until(lambda: link._reports.wire is not None or not ports)
        handle.told.clear()
        for name, size in (("short", 1), ("long", long)):
            events = remote.generate(Submit(name, "x" * size, SamplingParams()))
            await anext(events)
            await until(lambda name=name: name in handle.fake.open)
            handle.fake.finish(name)
            assert [event async for event in events]
        assert len([size for size in handle.told if size > 1]) == num_calls
        assert max(handle.told, default=0) <= 2000
        assert {submit.request_id: len(submit.prompt) for submit in handle.fake.submits} == {"short": 1, "long": long}
        await remote.close()
        await entrance.close()
        await until(lambda: not handle.fake.open)

    run(test())
