"""The uvicorn server, extended to load the models at start-up and to free them at shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from stoker.runtime.registry import Registry
from stoker.server.batches.batches import Batches
from stoker.server.config import ServerConfig
from stoker.server.transport.connection import STOP, Stop
from stoker.server.transport.listener import BACKLOG
from stoker.server.transport.protocol import ImpatientH11Protocol

_CLOSING_S = 5
"""Time after the drain in which ended requests may write their last bytes."""
_ACCEPTED_AT_ONCE = 16
"""Maximum number of connections that asyncio accepts per wake-up. asyncio uses its `backlog` for this number and for
the queue's length. When the system can open no further connection, it logs an error for each, so the number is small;
`startup` sets the length of the queue."""


class ModelServer(uvicorn.Server):
    """A uvicorn server that listens while the models load, and frees them after the drain.

    The drain is bounded by `drain_s`: a request that still runs then gets an error event, not a broken connection.

    Args:
        app: the application.
        registry: the models; closed at shutdown in every case.
        config: the settings of the server.
        on_ready: called once, when the models are loaded.
        on_stop: called once, when the shutdown begins, with the number of requests that still run.
        batches: batches of clients; None = batches are off.
        loading: a task that runs `registry.start()`; None = the server calls it at start-up.
    """

    def __init__(
        self,
        app: ASGIApp,
        registry: Registry,
        config: ServerConfig,
        on_ready: Callable[[], None],
        on_stop: Callable[[int], None] | None = None,
        batches: Batches | None = None,
        loading: asyncio.Task[None] | None = None,
    ) -> None:
        super().__init__(_uvicorn_config(app, config))
        self._on_stop = on_stop
        self._batches = batches
        self._registry = registry
        self._drain_s = config.drain_s
        self._on_ready = on_ready
        self._begun = loading
        self._loading: asyncio.Task[None] | None = None
        self._stop = Stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state[STOP] = self._stop
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)
        self._loading = asyncio.create_task(self._load(), name="stoker-load")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert self._loading is not None, "started once"
        self._stop.set()
        if self._on_stop is not None and self._has_loaded:
            self._on_stop(len(self.server_state.tasks))
        if self._batches is not None:
            await self._batches.close()  # batches continue at the next start of the server
        self._registry.events.close()  # else clients that follow the events would delay the drain
        cut = asyncio.ensure_future(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()
            self._loading.cancel()
            await asyncio.gather(cut, self._loading, return_exceptions=True)
            await self._registry.close()

    @property
    def _has_loaded(self) -> bool:
        loading = self._loading
        return loading is not None and loading.done() and not loading.cancelled() and loading.exception() is None

    def check_loaded(self) -> None:
        """Raises the error of a failed load. Call it after the server has ended.

        Raises:
            StokerError: the server has ended because a model could not be loaded.
        """
        if self._loading is not None and not self._loading.cancelled():
            self._loading.result()

    async def _load(self) -> None:
        is_loaded = False
        try:
            await (self._registry.start() if self._begun is None else self._begun)
            self._on_ready()
            if self._batches is not None:
                self._batches.start()
            is_loaded = True
        finally:
            if not is_loaded:
                self.should_exit = True
                self.config.timeout_graceful_shutdown = _CLOSING_S  # no request is being answered: no drain

    async def _cut_off(self) -> None:
        await asyncio.sleep(self._drain_s)
        await self._registry.close()


def _uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ImpatientH11Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=config.max_connections,
        backlog=_ACCEPTED_AT_ONCE,
        ssl_certfile=config.tls_certificate or None,
        ssl_keyfile=config.tls_key or None,
        timeout_keep_alive=config.idle_connection_s,
        timeout_graceful_shutdown=int(config.drain_s) + _CLOSING_S,
    )
