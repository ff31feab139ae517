"""One connection without a network: what the client sends is pushed into the protocol, what it gets is recorded."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from stoker.server.protocol import ImpatientH11Protocol

WAIT_S = 20
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

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def connect(app: Any) -> tuple[Wire, ImpatientH11Protocol]:
    """A connection that may be without a request for no time at all."""
    config = uvicorn.Config(app, log_config=None, timeout_keep_alive=0)
    protocol = ImpatientH11Protocol(config, ServerState(), {})
    wire = Wire()
    protocol.connection_made(wire)
    return wire, protocol


@pytest.mark.parametrize("sent", [[], [b"GET /"], [b"G", b"E", b"T /", b" HTTP/1.1\r\nHo"]])
def test_connection_without_a_whole_request_head_is_closed(sent: list[bytes]):
    async def scenario() -> None:
        wire, protocol = connect(None)
        for part in sent:
            protocol.data_received(part)
        await asyncio.wait_for(wire.closed.wait(), WAIT_S)
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

        wire, protocol = connect(app)
        for part in sent:
            protocol.data_received(part)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not wire.closed.is_set()
        answer.set()
        await asyncio.wait_for(wire.closed.wait(), WAIT_S)
        assert wire.sent.startswith(b"HTTP/1.1 200")

    asyncio.run(scenario())
