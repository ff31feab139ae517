"""Sends one request to an OpenAI-compatible server, and records when each piece of the streamed answer arrives.

Each request has a connection of its own, as with curl, and its time counts from before the connection is opened. No
averages are computed here.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import msgspec

from stoker.bench.reply import MalformedReply, ReplyParser
from stoker.bench.request import Answer, Failure, FailureKind, Job, Target

Clock: TypeAlias = Callable[[], float]
"""Returns a time in seconds; only differences between times are used."""

_DONE = b"[DONE]"


async def ask(
    target: Target, job: Job, *, clock: Clock = time.perf_counter, on_piece: Callable[[], None] | None = None
) -> Answer:
    """Sends one request and reads its stream to the end. A failure is not raised, but recorded in `Answer.failure`.

    Args:
        on_piece: called for every event that carries text.
    """
    answer = Answer(job, sent_s=clock())
    exchange = _Exchange(_request(target, job), _Reader(answer, on_piece), clock, target.stall_s)
    try:
        async with asyncio.timeout(target.stall_s):
            await _connect(target, lambda: exchange)
    except TimeoutError:
        answer.failure = Failure(FailureKind.STALLED, f"no connection within {target.stall_s:g} s")
    except OSError as error:
        answer.failure = Failure(FailureKind.UNREACHABLE, str(error) or type(error).__name__)
    else:
        await exchange.wait()
    answer.ended_s = clock()
    return answer


async def get(target: Target, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Sends a GET request: status and the beginning of the body. (0, b"") if no HTTP reply arrives in `timeout_s`."""
    parser = ReplyParser()
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            context = ssl.create_default_context() if target.is_encrypted else None
            reader, writer = await asyncio.open_connection(*target.address, ssl=context)
            writer.write(_head(target, "GET", path, ()) + b"\r\n")
            while not parser.is_whole and (received := await reader.read(2**16)):
                parser.push(received)
    except (TimeoutError, OSError, MalformedReply):
        return 0, b""
    finally:
        if writer is not None:
            writer.close()
    return parser.status, bytes(parser.body)


async def _connect(target: Target, protocol: Callable[[], asyncio.Protocol]) -> None:
    host, port = target.address
    context = ssl.create_default_context() if target.is_encrypted else None
    await asyncio.get_running_loop().create_connection(protocol, host, port, ssl=context)


def _request(target: Target, job: Job) -> bytes:
    body: dict[str, Any] = {
        "max_tokens": job.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint == "chat":
        body["messages"] = [{"role": role, "content": text} for role, text in job.messages]
    else:
        body["prompt"] = job.text
    if target.model is not None:
        body["model"] = target.model
    data = msgspec.json.encode(body | target.extra)
    path = target.path("chat/completions" if target.endpoint == "chat" else "completions")
    headers = ("Content-Type: application/json", "Accept: text/event-stream", f"Content-Length: {len(data)}")
    return _head(target, "POST", path, headers) + b"\r\n" + data


def _head(target: Target, method: str, path: str, headers: tuple[str, ...]) -> bytes:
    host, port = target.address
    key = () if target.api_key is None else (f"Authorization: Bearer {target.api_key}",)
    lines = (f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close", *key, *headers)
    return "".join(f"{line}\r\n" for line in lines).encode()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(msgspec.Struct, frozen=True):
    """The object `timings` of llama-server; `cache_n` is the number of prompt tokens from its cache."""

    cache_n: int | None = None


class _Event(msgspec.Struct, frozen=True):
    """The fields of a chunk that are read; all others are skipped without being decoded."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: object = None


_decode_event = msgspec.json.Decoder(_Event).decode


class _Reader:
    """Collects the events of one stream in an `Answer`."""

    def __init__(self, answer: Answer, on_piece: Callable[[], None] | None) -> None:
        self._answer = answer
        self._on_piece = on_piece
        self.is_complete = False

    def push(self, payload: bytes, now_s: float) -> None:
        """Takes the payload of one `data:` line.

        Raises:
            MalformedReply: the payload is not a chunk of this API.
        """
        if payload == _DONE:
            self.is_complete = True
            return
        try:
            event = _decode_event(payload)
        except msgspec.DecodeError as error:
            raise MalformedReply(f"not a chunk of this API: {payload[:80]!r}: {error}") from error
        if event.error is not None:
            self.fail(FailureKind.ERROR, _error_text(event.error))
        if event.choices:
            self._take_choice(event.choices[0], now_s)
        self._take_counts(event)

    def fail(self, kind: FailureKind, detail: str) -> None:
        """Records a failure, unless there is one already."""
        if self._answer.failure is None:
            self._answer.failure = Failure(kind, detail)

    def _take_choice(self, choice: _Choice, now_s: float) -> None:
        text = choice.text if choice.delta is None else choice.delta.content
        if text:
            self._answer.text += text
            self._answer.piece_s.append(now_s)
            if self._on_piece is not None:
                self._on_piece()
        if choice.finish_reason is not None:
            self._answer.finish_reason = choice.finish_reason
            self.is_complete = True

    def _take_counts(self, event: _Event) -> None:
        if event.timings is not None and event.timings.cache_n is not None:
            self._answer.cached_tokens = event.timings.cache_n
        if (usage := event.usage) is None:
            return
        self._answer.prompt_tokens = usage.prompt_tokens
        self._answer.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self._answer.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _error_text(error: object) -> str:
    message = cast(dict[str, object], error).get("message") if isinstance(error, dict) else error
    return str(message)[:300]


class _Exchange(asyncio.Protocol):
    """One request on one connection. A protocol, not a stream, because its callback reads the clock earliest."""

    def __init__(self, request: bytes, reader: _Reader, clock: Clock, stall_s: float) -> None:
        self._request = request
        self._reader = reader
        self._clock = clock
        self._stall_s = stall_s
        self._parser = ReplyParser()
        self._transport: asyncio.Transport | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._last_event_s = self._loop.time()

    async def wait(self) -> None:
        """Waits until the reply has ended or no event has arrived for `stall_s` seconds; closes the connection."""
        try:
            while not self._ended.is_set():
                left_s = self._last_event_s + self._stall_s - self._loop.time()
                if left_s <= 0:
                    self._reader.fail(FailureKind.STALLED, f"nothing came for {self._stall_s:g} s")
                    return
                try:
                    async with asyncio.timeout(left_s):
                        await self._ended.wait()
                except TimeoutError:
                    continue
        finally:
            if self._transport is not None:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._last_event_s = self._loop.time()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._ended.is_set():
            return
        now_s = self._clock()
        try:
            payloads = self._parser.push(data)
            for payload in payloads:
                self._reader.push(payload, now_s)
        except MalformedReply as error:
            self._reader.fail(FailureKind.MALFORMED, str(error))
            self._ended.set()
            return
        if payloads:
            self._last_event_s = self._loop.time()
        if self._parser.is_whole:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.is_set():
            self._parser.end()
            self._finish(exc)

    def _finish(self, exc: Exception | None = None) -> None:
        self._ended.set()
        parser, reader = self._parser, self._reader
        reason = f" ({exc})" if exc else ""
        if not parser.has_head:
            reader.fail(FailureKind.UNREACHABLE, f"the connection ended before the reply began{reason}")
        elif parser.status != 200:
            reader.fail(FailureKind.REFUSED, f"status {parser.status}: {_body_text(bytes(parser.body))}")
        elif not parser.is_stream:
            reader.fail(
                FailureKind.MALFORMED,
                f"the reply is not an event stream: {parser.body[:80].decode(errors='replace')!r}",
            )
        elif not reader.is_complete:
            reader.fail(FailureKind.CLOSED, f"the stream ended before the answer did{reason}")


def _body_text(body: bytes) -> str:
    try:
        return _error_text(_decode_event(body).error or body.decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return body[:300].decode("utf-8", "replace")
