"""An HTTP client for one external server, which translates failures to Stoker's errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import TypeVar

import httpx2
import msgspec

from stoker.errors import BackendError, InvalidInput, StokerError, Timeout

T = TypeVar("T")

_HERE = "http://127.0.0.1:"
_CONNECT_S = 3.0
_WRITE_S = 60.0
_FAILURES = (httpx2.HTTPError, httpx2.StreamError, OSError)


def _is_news(record: logging.LogRecord) -> bool:
    """A log filter: drops the HTTP library's records of requests to the own child process."""
    return not any(str(arg).startswith(_HERE) for arg in record.args or ())


logging.getLogger("httpx2").addFilter(_is_news)

_encode = msgspec.json.Encoder().encode


class BrokenOff(Exception):
    """The connection broke, or could not be made: perhaps the server has died."""


class ServerClient:
    """The client of one server on this machine. Belongs to one event loop.

    Args:
        port: the server's port on this machine.
        key: the API key that was given to the server.
        name: the program's name, for errors.
        reply_error: makes the error for a reply other than 200, from its status and its body.
    """

    def __init__(self, port: int, key: str, *, name: str, reply_error: Callable[[int, bytes], StokerError]) -> None:
        self._name = name
        self._reply_error = reply_error
        # Reads have no timeout: the supervisor, which sees all answers, decides how long an answer may be silent.
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
        """The body of the reply to a GET request.

        Raises:
            BrokenOff: the server cannot be reached, or the connection broke.
            Timeout: the server did not answer within `timeout_s` seconds.
            StokerError: the server answered with an error.
        """
        return await self._ask("GET", path, None, timeout_s)

    async def post(self, path: str, body: object, timeout_s: float | None) -> bytes:
        """The body of the reply to a POST request with a JSON body. Raises the errors of `get`, and:

        Raises:
            InvalidInput: a string in the body is not valid Unicode.
        """
        return await self._ask("POST", path, encoded(body), timeout_s)

    async def events(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """The data of every server-sent event of a POST request. Closing the stream makes the server abort the request.

        Raises:
            BrokenOff: the server cannot be reached, or the connection broke.
            StokerError: the server answered with an error instead of a stream.
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
        InvalidInput: a string in the body is not valid Unicode.
    """
    try:
        return _encode(body)
    except UnicodeEncodeError as error:  # a lone surrogate, which JSON from a client can contain
        raise InvalidInput(f"the request is not valid Unicode: {error.reason}", parameter="prompt") from error


def decode(body: bytes, kind: type[T], what: str) -> T:
    """Decodes the body of a reply, or an event; `what` names it in the error, such as `vLLM's version`.

    Raises:
        BackendError: the body does not have the form that this version of Stoker knows.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackendError(f"{what} cannot be understood: {error}: {body[:200]!r}") from error


MAX_EVENT_BYTES = 64 * 2**20


class TooLong(Exception):
    """An event is larger than `MAX_EVENT_BYTES`."""


class EventLines:
    """Parses one stream of server-sent events, as WHATWG specifies them. Drops comments, event names and ids.

    Old versions of llama-server write `error: {…}`, and new ones `data: {"error": {…}}`; both yield `{"error": {…}}`.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """Pieces of the line that is not complete yet."""
        self._data: list[bytes] = []
        self._num_bytes = 0
        """Bytes of the event that is not complete yet."""

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """The data of every event that this chunk completes.

        Raises:
            TooLong: an event is larger than `MAX_EVENT_BYTES`.
        """
        self._num_bytes += len(chunk)
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join((*self._line, end))
            self._line.clear()
            yield from self._take(line.removesuffix(b"\r"))
        if rest:
            self._line.append(rest)
        if ends:
            self._num_bytes = len(rest) + sum(map(len, self._data))
        if self._num_bytes > MAX_EVENT_BYTES:
            raise TooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")

    def flush(self) -> Iterator[bytes]:
        """The data of the last event, which the end of the stream completes."""
        yield from self._take(b"".join(self._line))
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
                self._data.clear()
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"error":
            self._data.append(b'{"error":' + value + b"}")
