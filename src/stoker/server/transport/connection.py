"""A client's connection: what it sends, bounded in size and time, and the moment at which it leaves."""

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
"""In a scope's state: a call that ends the connection, with what is not sent yet. Set by the protocol."""
WRITE = "write_chunk"
"""In a scope's state: a `WriteChunk`. Set by the protocol."""
STOP = "server_stop"
"""In a scope's state: the server's `Stop`. Set by the server."""

_LAST_BODY_S = 1.0
"""How long the rest of a body may take when the server is being stopped."""

WriteChunk: TypeAlias = Callable[[bytes], bool]
"""Gives the next bytes of a body to the connection at once. False: nothing was written, because the connection must
drain first or is closed; the caller then sends the bytes the usual way.
"""

T = TypeVar("T")


class Stop:
    """Tells the tasks that wait for a body that the server is being stopped. Belongs to one event loop."""

    def __init__(self) -> None:
        self._clocks: set[asyncio.Timeout] = set()
        self.is_set = False

    def set(self) -> None:
        """From now on, the wait for a body is short."""
        self.is_set = True
        for clock in self._clocks:
            _hurry(clock)

    @contextmanager
    def hurrying(self, clock: asyncio.Timeout) -> Generator[None]:
        """Makes the running `clock` expire soon after the stop."""
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
        Cancelled: the client left.
        ModelNotLoaded: the server is being stopped, and the body is not there a second later.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(415, f"the body must not be compressed, but its Content-Encoding is {encoding[:40]!r}")
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


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` as long as the client is there; it is cancelled, and has ended, when the client has left.

    The request's body must have been read before.

    Raises:
        Cancelled: the client left first.
    """
    return await race(work, client_left(receive))


async def race(work: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, NoReturn]) -> T:
    """Runs `work` until it ends or a guard raises. On return all of them have ended.

    Raises:
        Exception: what `work` raised, else what the guard raised.
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
    """The short way for a body without a declared length, once the response has begun. What a token costs on the usual
    one, through all layers around the application, is more than everything else that is done for it here.
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
