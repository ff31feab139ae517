"""Streaming responses: framing, keep-alive lines, slow and disconnected clients. Independent of wire types."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
from starlette.types import Receive, Scope, Send

from stoker.errors import Cancelled
from stoker.server.config import ServerConfig
from stoker.server.errors import ErrorBody
from stoker.server.transport.connection import ABORT, WriteChunk, chunk_writer, client_left, race

DONE = b"data: [DONE]\n\n"
_COMMENT = b":\n\n"

_UNBUFFERED = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx would buffer the stream
]


@dataclass(frozen=True, slots=True)
class Framing:
    """How an API frames its streams: as server-sent events or as lines of JSON."""

    content_type: bytes
    keep_alive: bytes | None
    """Line that clients skip, sent after a time without output. None = the framing has no such line."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"content-type", self.content_type), *_UNBUFFERED]


SSE = Framing(b"text/event-stream; charset=utf-8", _COMMENT)
NDJSON = Framing(b"application/x-ndjson", None)


def error_event(body: ErrorBody) -> bytes:
    """The last event of an OpenAI stream that failed; no `[DONE]` follows it."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream:
    """An ASGI response that streams events to the client as they are produced.

    Args:
        events: encoded bytes, one or more whole events each. Closed in every case.
        close: frees the source of the events; called in every case, also if the client disconnects before the first.
        config: `keep_alive_s` and `write_timeout_s` are used.
        framing: framing of the API.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        close: Callable[[], Awaitable[None]],
        config: ServerConfig,
        framing: Framing = SSE,
    ) -> None:
        self._events = events
        self._close = close
        self._config = config
        self._framing = framing
        self._last_sent_s = time.monotonic()
        self._is_sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._framing.headers})
            await race(self._write(send, chunk_writer(scope)), *self._guards(receive, send))
        except Cancelled:
            scope["state"]["client_left"] = True
            await _cut_off(scope)
        finally:
            await self._close()

    def _guards(self, receive: Receive, send: Send) -> list[Coroutine[Any, Any, NoReturn]]:
        line = self._framing.keep_alive
        return [client_left(receive), self._watch_writes(), *([self._keep_alive(send, line)] if line else [])]

    async def _write(self, send: Send, write: WriteChunk) -> None:
        async with aclosing(self._events):
            async for event in self._events:
                if write(event):
                    self._last_sent_s = time.monotonic()
                else:
                    await self._send(send, event)
        await self._send(send, b"", more_body=False)

    async def _keep_alive(self, send: Send, line: bytes) -> NoReturn:
        while True:
            silent_s = time.monotonic() - self._last_sent_s
            if silent_s < self._config.keep_alive_s:
                await asyncio.sleep(self._config.keep_alive_s - silent_s)
            else:
                await self._send(send, line)

    async def _send(self, send: Send, body: bytes, *, more_body: bool = True) -> None:
        self._last_sent_s, self._is_sending = time.monotonic(), True
        await send({"type": "http.response.body", "body": body, "more_body": more_body})
        self._is_sending = False

    async def _watch_writes(self) -> NoReturn:
        """Ends the stream if the client does not read. A timeout around each write would cost a timer per token."""
        limit_s = self._config.write_timeout_s
        while True:
            waited_s = time.monotonic() - self._last_sent_s if self._is_sending else 0.0
            if waited_s >= limit_s:
                raise Cancelled(f"the client read nothing for {limit_s:g} s")
            await asyncio.sleep(limit_s - waited_s)


async def _cut_off(scope: Scope) -> None:
    """Aborts the connection. A graceful close would wait for a client that does not read."""
    abort = scope["state"].get(ABORT)
    if abort is not None:
        abort()
        await asyncio.sleep(0)  # let the abort finish, else uvicorn reports an incomplete response
