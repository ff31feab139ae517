"""HTTP to one external server, every wait bounded; what goes wrong there becomes one of Stoker's errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import httpx2
import msgspec

from stoker.errors import InvalidInput, StokerError, Timeout
from stoker.runtime.external.event_lines import EventLines, TooLong

_HERE = "http://127.0.0.1:"
_CONNECT_S = 3.0
_WRITE_S = 60.0
_FAILURES = (httpx2.HTTPError, httpx2.StreamError, OSError)


def _is_news(record: logging.LogRecord) -> bool:
    """The library logs every request; requests to the own child process are noise."""
    return not any(str(arg).startswith(_HERE) for arg in record.args or ())


logging.getLogger("httpx2").addFilter(_is_news)

_encode = msgspec.json.Encoder().encode


class BrokenOff(Exception):
    """The connection ended, or was never there: perhaps the server has died."""


class ServerClient:
    """Belongs to one event loop.

    Args:
        port: on this machine.
        key: that was given to the server.
        name: of the program, for errors.
        reply_error: what a reply that is not 200 means, by its status and its body.
    """

    def __init__(self, port: int, key: str, *, name: str, reply_error: Callable[[int, bytes], StokerError]) -> None:
        self._name = name
        self._reply_error = reply_error
        # How long an answer may be silent is for the supervisor to say, who sees all of them.
        timeout = httpx2.Timeout(None, connect=_CONNECT_S, write=_WRITE_S)
        self._http = httpx2.AsyncClient(
            base_url=f"{_HERE}{port}",
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            timeout=timeout,
            limits=httpx2.Limits(),
            trust_env=False,
            verify=False,
        )

    async def get(self, path: str, timeout_s: float) -> bytes:
        """The body of a reply.

        Raises:
            BrokenOff: there is no server, or no more.
            Timeout: it did not answer in time.
            StokerError: what it answered.
        """
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, body: object, timeout_s: float | None) -> bytes:
        """As `get`, with a JSON body.

        Raises:
            InvalidInput: a string in it is not valid Unicode.
        """
        return await self._ask("POST", path, encoded(body), timeout_s)

    async def events(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """The data of every event of a stream. Closing the stream tells the server that the client is gone.

        Raises:
            BrokenOff: there is no server, or no more.
            StokerError: what it answered instead of a stream.
        """
        lines = EventLines()
        try:
            async with self._http.stream("POST", path, content=body) as response:
                if response.status_code != 200:
                    raise self._reply_error(response.status_code, await response.aread())
                async with aclosing(response.aiter_bytes()) as chunks:
                    async for chunk in chunks:
                        for event in lines.push(chunk):
                            yield event
                for event in lines.flush():
                    yield event
        except (*_FAILURES, TooLong) as error:
            raise BrokenOff(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Drops all connections."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float | None) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._http.request(method, path, content=body)
        except TimeoutError as error:
            message = f"{self._name} did not answer within {timeout_s:g} s"
            raise Timeout(message, timeout_s=timeout_s) from error
        except _FAILURES as error:
            raise BrokenOff(str(error) or type(error).__name__) from error
        if response.status_code != 200:
            raise self._reply_error(response.status_code, response.content)
        return response.content


def encoded(body: object) -> bytes:
    """The JSON of a request.

    Raises:
        InvalidInput: a string in it is not valid Unicode.
    """
    try:
        return _encode(body)
    except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
        raise InvalidInput(f"the request is not valid Unicode: {error.reason}", parameter="prompt") from error
