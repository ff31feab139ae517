"""uvicorn's HTTP/1.1 on one connection, with a bound on the time that it may spend without a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientH11Protocol(H11Protocol):
    """Closes a connection on which no whole request head arrives within uvicorn's `timeout_keep_alive`.

    uvicorn starts that clock only after a response, and stops it at the next byte, whatever the byte is.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._close_at(self.loop.time() + self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        clock = self.timeout_keep_alive_task
        super().data_received(data)
        has_request = bool(self.cycle) and not self.cycle.response_complete
        if clock is not None and clock.cancelled() and not has_request:
            self._close_at(clock.when())

    def _close_at(self, when: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_at(when, self.timeout_keep_alive_handler)
