"""uvicorn's HTTP/1.1 on one connection: bounds on the time without a request, and on the number of connections."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.server.access import CROWDED

_CROWDED_HEAD_S = 5
"""One connection too many has so long for the request to which it is told so."""


class ImpatientH11Protocol(H11Protocol):
    """Closes a connection on which no whole request head arrives within uvicorn's `timeout_keep_alive`.

    uvicorn starts that clock only after a response, and stops it at the next byte, whatever the byte is. One connection
    more than uvicorn's `limit_concurrency` is marked as `CROWDED`, and closed after its first answer; uvicorn itself
    would say so in plain text, which no client can read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if self._max_connections is not None and len(self.connections) > self._max_connections:
            self.app_state = {**self.app_state, CROWDED: True}
            self.timeout_keep_alive = min(self.timeout_keep_alive, _CROWDED_HEAD_S)
        self._close_at(self.loop.time() + self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        clock = self.timeout_keep_alive_task
        super().data_received(data)
        has_request = bool(self.cycle) and not self.cycle.response_complete
        if clock is not None and clock.cancelled() and not has_request:
            self._close_at(clock.when())

    def _close_at(self, when: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_at(when, self.timeout_keep_alive_handler)
