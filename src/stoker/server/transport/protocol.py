"""uvicorn's HTTP/1.1 protocol with limits on idle time and on the number of connections."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.server.access.control import CROWDED
from stoker.server.error_types import ErrorBody, ErrorDetail
from stoker.server.transport.connection import ABORT, WRITE
from stoker.server.transport.descriptors import Reserve

logger = logging.getLogger(__name__)

_CROWDED_HEAD_S = 5
"""Time in which a connection beyond the limit must send its request, which is then refused."""
_MAX_CROWD = 64
"""Maximum number of connections beyond the limit. A newer one, which may be a health check, aborts the oldest."""
_CROWD = "crowd"
"""Key in the state that all connections share: the connections beyond the limit, in order of arrival."""
_RESERVE = "reserve"
"""Key in the state that all connections share: the `Reserve`."""
_TLS_HANDSHAKE = b"\x16\x03"
_INVALID = "this is not a valid HTTP request, or its head is too large"
_BAD_REQUEST = ErrorBody(ErrorDetail(_INVALID, "invalid_request_error", None, "bad_request"))


class ImpatientH11Protocol(H11Protocol):
    """Closes a connection on which no complete request head arrives within uvicorn's `timeout_keep_alive`.

    uvicorn itself starts that timer only after a response, and stops it at the next byte of any kind. A connection
    beyond uvicorn's `limit_concurrency` is marked as `CROWDED` and closed after its first answer; uvicorn's own refusal
    is plain text, which API clients cannot parse. A connection that is being closed is aborted if the client reads
    nothing of the remaining bytes within the same time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._crowd = cast("dict[ImpatientH11Protocol, None]", self.app_state.setdefault(_CROWD, {}))
        reserve = cast("Reserve", self.app_state.setdefault(_RESERVE, Reserve()))
        connection = transport.get_extra_info("socket")
        if connection is not None and reserve.refuses(connection):
            transport.abort()
            return
        write = partial(_write_chunk, transport, self.flow)  # a method would keep a closed connection until the next gc
        self.app_state = {**self.app_state, ABORT: transport.abort, WRITE: write}
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            self._join_crowd()
        self._close_at(self.loop.time() + self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._crowd.pop(self, None)

    def data_received(self, data: bytes) -> None:
        clock = self.timeout_keep_alive_task
        super().data_received(data)
        has_request = bool(self.cycle) and not self.cycle.response_complete
        if clock is not None and clock.cancelled() and not has_request:
            self._close_at(clock.when())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_closing()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not valid HTTP. The body has OpenAI's shape, because the dialect is unknown."""
        if self.conn.trailing_data[0].startswith(_TLS_HANDSHAKE):
            logger.warning("it is TLS, which needs --tls-certificate: a client's base URL begins with https, not http")
        body = msgspec.json.encode(_BAD_REQUEST)
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
        self._watch_closing()

    def _unsupported_upgrade_warning(self) -> None:
        """Silences uvicorn's advice to install WebSocket packages: a request to upgrade may be ignored."""

    def _join_crowd(self) -> None:
        self.app_state = {**self.app_state, CROWDED: True}
        self.timeout_keep_alive = min(self.timeout_keep_alive, _CROWDED_HEAD_S)
        self._crowd[self] = None
        if len(self._crowd) > _MAX_CROWD:
            oldest = next(iter(self._crowd))
            del self._crowd[oldest]
            oldest.transport.abort()

    def _watch_closing(self) -> None:
        if self.transport.is_closing() and (num_bytes := self.transport.get_write_buffer_size()):
            self.loop.call_later(self.timeout_keep_alive, self._abort_if_stuck, num_bytes)

    def _abort_if_stuck(self, num_bytes: int) -> None:
        if self.transport.get_write_buffer_size() < num_bytes:
            self._watch_closing()
        else:
            self.transport.abort()

    def _close_at(self, when: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_at(when, self.timeout_keep_alive_handler)


def _write_chunk(transport: asyncio.Transport, flow: FlowControl, body: bytes) -> bool:
    """See `WriteChunk`. Writes the bytes that h11 would write; h11 keeps no state per chunk, so it can be bypassed."""
    if flow.write_paused or transport.is_closing() or not body:
        return False
    transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True
