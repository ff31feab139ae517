"""An OpenAI-compatible server that does exactly what a script says, for the tests of the load generator.

It shares the event loop and, if wanted, the clock of its client: a delay is the clock put forward, and the server goes
on only when the client has looked at the clock. So what the client must measure is known exactly, on any machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stoker.bench.request import Target
from tests.waiting import BOUND_S

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


class SharedClock:
    """Stands still unless it is put forward."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._num_reads = 0
        self._read = asyncio.Event()

    def __call__(self) -> float:
        self._num_reads += 1
        self._read.set()
        return self.now_s

    async def seen_after(self, action: Callable[[], None]) -> None:
        """Does something, and waits until somebody has looked at the clock since."""
        num_reads = self._num_reads
        action()
        async with asyncio.timeout(BOUND_S):
            while self._num_reads == num_reads:
                self._read.clear()
                await self._read.wait()


@dataclass
class Exchange:
    """One request on the server's side, and the verbs of a script."""

    path: str
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    clock: SharedClock | None = None

    async def raw(self, data: bytes) -> None:
        if self.clock is None:
            self.writer.write(data)
            await self.writer.drain()
        else:
            await self.clock.seen_after(lambda: self.writer.write(data))

    async def head(self) -> None:
        await self.raw(HEAD)

    async def event(self, payload: object) -> None:
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        await self.raw(_chunk(b"data: " + data + b"\n\n"))

    async def token(self, text: str = " a", *, after_s: float = 0.0, finish: str | None = None) -> None:
        if self.clock is not None:
            self.clock.now_s += after_s
        await self.event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})

    async def usage(self, prompt: int, completion: int, cached: int = 0) -> None:
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        await self.event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}}})

    async def done(self) -> None:
        await self.raw(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def status(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        await self.raw(head % (status, len(body)) + body)


Script = Callable[[Exchange], Awaitable[None]]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answer(exchange: Exchange) -> None:
    """A good server: as many tokens as are asked for, and a usage that counts words."""
    count = exchange.body["max_tokens"]
    await exchange.head()
    for index in range(count):
        await exchange.token(finish="length" if index == count - 1 else None)
    await exchange.usage(len(exchange.body["prompt"].split()), count)
    await exchange.done()


@dataclass
class Scripted:
    """A running server."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Bodies, in the order of arrival."""
    num_active: int = 0
    most_active: int = 0

    @property
    def target(self) -> Target:
        return Target(url=self.url, stall_s=BOUND_S)


@asynccontextmanager
async def scripted(
    script: Script = answer, clock: SharedClock | None = None, models: object = None
) -> AsyncGenerator[Scripted]:
    """Runs a script for every POST; GET gives `models`."""
    server = Scripted("")
    handlers: set[asyncio.Task[None]] = set()

    async def post(exchange: Exchange) -> None:
        server.requests.append(exchange.body)
        server.num_active += 1
        server.most_active = max(server.most_active, server.num_active)
        try:
            await script(exchange)
        finally:
            server.num_active -= 1

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        handlers.add(handler)
        try:
            method, path, body = await _read(reader)
            if method == "GET":
                await Exchange(path, body, writer).status(200, msgspec.json.encode(models or {"data": []}))
            else:
                await post(Exchange(path, body, writer, clock))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()
            handlers.discard(handler)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        yield server
        for handler in handlers:
            handler.cancel()


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, path, _ = head.split(" ", 2)
    lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
    data = await reader.readexactly(int(lengths[0])) if lengths else b"{}"
    return method, path, msgspec.json.decode(data)
