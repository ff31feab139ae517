"""A client's connection: reads request bodies, bounded in size and time, and notices when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from stoker.errors import Cancelled, ModelNotLoaded
from stoker.server.config import ServerConfig

ABORT = "abort_connection"
"""Key in a scope's state: a function that aborts the connection and drops unsent bytes. Set by the protocol."""
WRITE = "write_chunk"
"""Key in a scope's state: the connection's `WriteChunk`. Set by the protocol."""
STOP = "server_stop"
"""Key in a scope's state: the server's `Stop`. Set by the server."""

_LAST_BODY_S = 1.0
"""Time for the rest of a request body after the server has begun to stop."""

WriteChunk: TypeAlias = Callable[[bytes], bool]
"""Writes the next bytes of a response body directly to the connection. False: nothing was written, because the
connection must drain first (back-pressure) or is closed; the caller then sends the bytes through ASGI.
"""

T = TypeVar("T")


class Stop:
    """Signals the stop of the server to the tasks that wait for a request body. Belongs to one event loop."""

    def __init__(self) -> None:
        self._clocks: set[asyncio.Timeout] = set()
        self.is_set = False

    def set(self) -> None:
        """Shortens the present and all later waits for a request body."""
        self.is_set = True
        for clock in self._clocks:
            _hurry(clock)

    @contextmanager
    def hurrying(self, clock: asyncio.Timeout) -> Generator[None]:
        """Makes the running timeout `clock` expire soon after the stop, inside of the context."""
        self._clocks.add(clock)
        if self.is_set:
            _hurry(clock)
        try:
            yield
        finally:
            self._clocks.discard(clock)


async def read_body(request: Request, config: ServerConfig) -> bytes:
    """The whole body of a request.

    Raises:
        HTTPException: 413 if it is larger than `max_body_bytes`, 408 if it takes longer than `body_timeout_s`, 415 if
            it is compressed.
        Cancelled: the client disconnected.
        ModelNotLoaded: the server is being stopped, and the body was still incomplete a second later.
    """
    check_uncompressed(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > config.max_body_bytes:
        raise _too_large(config)
    stop: Stop = request.scope.get("state", {}).get(STOP) or Stop()
    try:
        async with asyncio.timeout(config.body_timeout_s) as clock:
            with stop.hurrying(clock):
                return await _read_bounded(request, config)
    except TimeoutError:
        if stop.is_set:
            raise ModelNotLoaded("the server is stopping, and the request body was incomplete") from None
        raise HTTPException(408, f"the body took longer than {config.body_timeout_s:g} s") from None
    except ClientDisconnect:
        raise Cancelled("the client left before its request was complete") from None


def check_uncompressed(request: Request) -> None:
    """Raises HTTPException 415 if the body of a request is compressed."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(415, f"the body must not be compressed, but its Content-Encoding is {encoding[:40]!r}")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` and returns its result. If the client disconnects first, `work` is cancelled and awaited.

    The request's body must have been read before.

    Raises:
        Cancelled: the client disconnected before `work` ended.
    """
    return await race(work, client_left(receive))


async def race(work: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, NoReturn]) -> T:
    """Runs `work` until it ends or a guard raises. When this returns or raises, `work` and all guards have ended.

    Raises:
        Exception: the exception of `work`, else that of the guard.
    """
    worker = asyncio.ensure_future(work)
    guarding = [asyncio.ensure_future(guard) for guard in guards]
    try:
        await asyncio.wait([worker, *guarding], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [guard for guard in guarding if guard.done()]
        for task in (worker, *guarding):
            task.cancel()
        await asyncio.gather(worker, *guarding, return_exceptions=True)
    return ended[0].result() if worker.cancelled() else worker.result()


def chunk_writer(scope: Scope) -> WriteChunk:
    """The `WriteChunk` for a response that has begun and has no declared length; it bypasses all ASGI layers.

    It writes nothing if the response cannot have chunked transfer encoding. Sending a token's event through the layers
    would cost more than all other work of the HTTP server for that token.
    """
    is_chunked = scope["http_version"] == "1.1" and scope["method"] != "HEAD"
    return scope["state"].get(WRITE, _no_short_way) if is_chunked else _no_short_way


async def client_left(receive: Receive) -> NoReturn:
    """Waits until the client closes the connection.

    Raises:
        Cancelled: always.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    raise Cancelled("the client left before its answer was complete")


def _no_short_way(_body: bytes) -> bool:
    return False


async def _read_bounded(request: Request, config: ServerConfig) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > config.max_body_bytes:
            raise _too_large(config)
        chunks.append(chunk)
    return b"".join(chunks)


def _hurry(clock: asyncio.Timeout) -> None:
    ends_at, soon = clock.when(), asyncio.get_running_loop().time() + _LAST_BODY_S
    if not clock.expired() and (ends_at is None or soon < ends_at):
        clock.reschedule(soon)


def _too_large(config: ServerConfig) -> HTTPException:
    return HTTPException(413, f"the body is larger than {config.max_body_bytes} bytes")
