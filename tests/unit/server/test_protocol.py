"""One connection without a network: what the client sends is pushed into the protocol, what it gets is recorded."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from stoker.server.config import ServerConfig
from stoker.server.transport.protocol import ImpatientH11Protocol
from stoker.server.transport.sse import EventStream
from tests.waiting import BOUND_S

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """The client's end."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = b""
        self.closed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


WireT = TypeVar("WireT", bound="Wire")


def connect(app: Any, wire: WireT) -> tuple[WireT, ImpatientH11Protocol]:
    """A connection that may be without a request for no time at all."""
    config = uvicorn.Config(app, log_config=None, timeout_keep_alive=0)
    protocol = ImpatientH11Protocol(config, ServerState(), {})
    protocol.connection_made(wire)
    return wire, protocol


@pytest.mark.parametrize("sent", [[], [b"GET /"], [b"G", b"E", b"T /", b" HTTP/1.1\r\nHo"]])
def test_connection_without_a_whole_request_head_is_closed(sent: list[bytes]):
    async def scenario() -> None:
        wire, protocol = connect(None, Wire())
        for part in sent:
            protocol.data_received(part)
        await asyncio.wait_for(wire.closed.wait(), BOUND_S)
        assert wire.sent == b""

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", [[HEAD], [HEAD[:5], HEAD[5:]]])
def test_request_may_take_its_time_and_what_trickles_after_it_may_not(sent: list[bytes]):
    async def scenario() -> None:
        answer = asyncio.Event()

        async def app(_scope: Any, _receive: Any, send: Any) -> None:
            await answer.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            protocol.data_received(b"GET /")

        wire, protocol = connect(app, Wire())
        for part in sent:
            protocol.data_received(part)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not wire.closed.is_set()
        answer.set()
        await asyncio.wait_for(wire.closed.wait(), BOUND_S)
        assert wire.sent.startswith(b"HTTP/1.1 200")

    asyncio.run(scenario())


class FullWire(Wire):
    """A client that takes `taken` bytes between two looks, and no more when these are used up."""

    def __init__(self, *taken: int) -> None:
        super().__init__()
        self._taken = list(taken)
        self._size = 0
        self.aborted = asyncio.Event()

    def write(self, data: Any) -> None:
        super().write(data)
        self._size += len(data)

    def get_write_buffer_size(self) -> int:
        size = self._size
        self._size -= self._taken.pop(0) if self._taken else 0
        return size

    def abort(self) -> None:
        self.aborted.set()


async def answer_and_close(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"9"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"some text"})


@pytest.mark.parametrize("head", [HEAD, b"nonsense\r\n\r\n", b"GET /"])
@pytest.mark.parametrize("taken", [(), (1, 1, 1)])
def test_client_that_takes_nothing_keeps_no_connection_open(head: bytes, taken: tuple[int, ...]):
    async def scenario() -> None:
        wire, protocol = connect(answer_and_close, FullWire(*taken))
        wire.write(b"what an earlier response has left")
        protocol.data_received(head)
        await asyncio.wait_for(wire.aborted.wait(), BOUND_S)
        assert wire.closed.is_set()
        assert wire._taken == [], "not while something of it leaves"

    asyncio.run(scenario())


def test_what_is_no_http_is_told_so_in_json():
    async def scenario() -> None:
        wire, protocol = connect(None, Wire())
        protocol.data_received(b"\x16\x03\x01 nonsense\r\n\r\n")
        head, _, body = wire.sent.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"content-length: %d\r\n" % len(body) in head
        assert json.loads(body)["error"]["code"] == "bad_request"

    asyncio.run(scenario())


class Streaming:
    """An application that streams: the first event at once, each other one when it is let."""

    def __init__(self, *events: bytes) -> None:
        self._events = events
        self.gate = asyncio.Semaphore(1)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await EventStream(self._stream(), self._close, ServerConfig())(scope, receive, send)

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        for event in self._events:
            await self.gate.acquire()
            yield event

    async def _close(self) -> None: ...


async def turns() -> None:
    """Everybody has done what can be done now."""
    for _ in range(20):
        await asyncio.sleep(0)


def body_of(method: str, sent: bytes, *, is_closed: bool = False) -> list[bytes]:
    """The parts of a response's body as a client gets them; the last one is "end" if the response is complete."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
    client.receive_data(sent)
    if is_closed:
        client.receive_data(b"")
    parts: list[bytes] = []
    while (event := client.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        if isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            assert client.trailing_data[0] == b"", "what follows is taken for the next response"
            return [*parts, b"end"]
    return parts


def test_each_event_of_a_stream_leaves_at_once_and_the_connection_goes_on():
    async def scenario() -> None:
        app = Streaming(b"one", b"x" * 300, b"three")
        wire, protocol = connect(app, Wire())
        protocol.timeout_keep_alive = BOUND_S
        protocol.data_received(HEAD)
        await turns()
        assert body_of("GET", wire.sent) == [b"one"]
        app.gate.release()
        await turns()
        assert body_of("GET", wire.sent) == [b"one", b"x" * 300]
        app.gate.release()
        await turns()
        assert body_of("GET", wire.sent) == [b"one", b"x" * 300, b"three", b"end"]
        wire.sent = b""
        protocol.data_received(HEAD)
        app.gate = asyncio.Semaphore(3)
        await turns()
        assert body_of("GET", wire.sent) == [b"one", b"x" * 300, b"three", b"end"]
        protocol.connection_lost(None)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_head", "method", "body"),
    [(b"GET / HTTP/1.0\r\n\r\n", "GET", [b"onetwo", b"end"]), (HEAD.replace(b"GET", b"HEAD"), "HEAD", [b"end"])],
)
def test_stream_is_framed_as_its_client_reads_it(request_head: bytes, method: str, body: list[bytes]):
    async def scenario() -> None:
        app = Streaming(b"one", b"two")
        app.gate.release()
        wire, protocol = connect(app, Wire())
        protocol.data_received(request_head)
        await turns()
        assert body_of(method, wire.sent, is_closed=True) == body
        protocol.connection_lost(None)

    asyncio.run(scenario())


def test_stream_waits_for_a_client_that_is_behind():
    async def scenario() -> None:
        app = Streaming(b"one", b"two", b"three")
        wire, protocol = connect(app, Wire())
        protocol.data_received(HEAD)
        await turns()
        protocol.pause_writing()
        app.gate.release()
        app.gate.release()
        await turns()
        assert body_of("GET", wire.sent) == [b"one"]
        assert not app.gate.locked(), "the third one is not even asked for"
        protocol.resume_writing()
        await turns()
        assert body_of("GET", wire.sent) == [b"one", b"two", b"three", b"end"]
        protocol.connection_lost(None)

    asyncio.run(scenario())


def test_nothing_is_written_to_a_client_that_has_left():
    async def scenario() -> None:
        app = Streaming(b"one", b"two")
        wire, protocol = connect(app, Wire())
        protocol.data_received(HEAD)
        await turns()
        before = wire.sent
        wire.close()
        app.gate.release()
        protocol.connection_lost(None)
        await turns()
        assert wire.sent == before

    asyncio.run(scenario())


@pytest.mark.parametrize(("sent", "is_tls"), [(b"\x16\x03\x01\x02\x00\x01\x00\r\n", True), (b"no HTTP\r\n\r\n", False)])
def test_tls_to_a_server_without_it_is_named_in_the_log(sent: bytes, is_tls: bool, caplog: pytest.LogCaptureFixture):
    async def scenario() -> None:
        wire, protocol = connect(None, Wire())
        protocol.data_received(sent)
        assert wire.sent.startswith(b"HTTP/1.1 400 ")

    asyncio.run(scenario())
    assert ("needs --tls-certificate" in caplog.text) == is_tls
