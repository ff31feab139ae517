"""Puts the routes together and runs them on uvicorn; what they do is decided elsewhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from stoker.errors import StokerError
from stoker.models.cache import files_dir
from stoker.runtime.registry import Registry
from stoker.server.access.control import AccessControl, CrossOrigin
from stoker.server.access.keys import ApiKeys
from stoker.server.api import Server, routes_of
from stoker.server.batches.batches import BatchBorder, Batches
from stoker.server.batches.files import FileStore
from stoker.server.config import ServerConfig
from stoker.server.endpoints import ROUTERS
from stoker.server.errors import on_bug, on_http_error, on_stoker_error
from stoker.server.leasing import LeaseBorder
from stoker.server.observe.access_log import bare_lines
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.observe.tracing import Tracing, open_provider
from stoker.server.transport.connection import STOP, Stop
from stoker.server.transport.descriptors import make_room
from stoker.server.transport.listener import BACKLOG, check_exposure, listening, url_of
from stoker.server.transport.middleware import RequestBorder
from stoker.server.transport.protocol import ImpatientH11Protocol

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_CLOSING_S = 5
"""After the drain: how long ended requests get to write their last bytes."""
_ACCEPTED_AT_ONCE = 16
"""asyncio uses one number for that and for the length of the queue. With a long one it would, whenever the system has
no room for another connection, say so that many times."""


def create_app(
    registry: Registry,
    config: ServerConfig,
    spans: TracerProvider | None = None,
    keys: ApiKeys | None = None,
    parts: Sequence[object] = (),
) -> ASGIApp:
    """The whole HTTP surface as an ASGI application. Loading the models and freeing them is the caller's part.

    Until the models are loaded, a request that needs one is answered with 503.

    Args:
        registry: the models.
        config: all bounds.
        spans: takes one per request; shutting it down is the caller's part.
        keys: those of the config, whose file may be one that can be read only once; None = they are read here.
        parts: what endpoints use instead of what they would make, see `Server.part`.

    Raises:
        ConfigError: the keys cannot be read.
    """
    counts = next((part for part in parts if isinstance(part, ResponseCounts)), ResponseCounts())
    routes = routes_of(ROUTERS, Server(registry, config, [*parts, counts]))
    handlers = {StokerError: on_stoker_error, HTTPException: on_http_error, Exception: on_bug}
    starlette = Starlette(routes=routes, exception_handlers=handlers)
    starlette.router.redirect_slashes = False  # RequestBorder drops the last slash, so a redirect to it has no end
    app: ASGIApp = LeaseBorder(starlette)
    for part in parts:
        if isinstance(part, Batches):
            part.serve_with(RequestBorder(BatchBorder(app), config, ResponseCounts()))
    app = CrossOrigin(AccessControl(app, config, keys or ApiKeys(config)), config)
    return RequestBorder(app if spans is None else Tracing(app, spans), config, counts)


def serve(
    registry: Registry,
    config: ServerConfig,
    on_ready: Callable[[str], None] = lambda url: None,
    on_stop: Callable[[int], None] | None = None,
    batch_concurrency: int = 8,
) -> None:
    """Serves until SIGINT or SIGTERM, then lets running requests end for up to `drain_s`.

    It listens at once, and answers with 503 as long as the models are loading.

    Args:
        registry: the models; loaded here, and closed in every case.
        config: where to listen and all bounds.
        on_ready: called once with the base URL as soon as the models answer.
        on_stop: called once with the number of requests that still run, when it begins to stop.
        batch_concurrency: requests of batches that run at the same time.

    Raises:
        ConfigError: the address cannot be listened on, or would be open to all; or a setting is wrong.
        StokerError: a model cannot be loaded.
        KeyboardInterrupt: it was ended by SIGINT, after the drain.
    """
    keys = ApiKeys(config)
    check_exposure(config, keys)
    config = make_room(config)
    with listening(config) as listener, _spans(config) as spans, bare_lines(is_json=config.log_format == "json"):
        batches = _open_batches(config, batch_concurrency)
        app = create_app(registry, config, spans, keys, [] if batches is None else [batches])
        asyncio.run(_serve(app, registry, config, listener, on_ready, on_stop, batches))


def _open_batches(config: ServerConfig, concurrency: int) -> Batches | None:
    if not config.files_dir:
        return None
    folder = files_dir() if config.files_dir == "auto" else Path(config.files_dir).expanduser()
    return Batches(FileStore(folder, config.files_mib), concurrency)


@contextmanager
def _spans(config: ServerConfig) -> Generator[TracerProvider | None]:
    spans = open_provider(config.otlp_endpoint) if config.otlp_endpoint else None
    try:
        yield spans
    finally:
        if spans is not None:
            spans.shutdown()


async def _serve(
    app: ASGIApp,
    registry: Registry,
    config: ServerConfig,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    on_stop: Callable[[int], None] | None,
    batches: Batches | None,
) -> None:
    server = _Server(app, registry, config, lambda: on_ready(url_of(config, listener)), on_stop, batches)
    await server.serve(sockets=[listener])
    server.check_loaded()


class _Server(uvicorn.Server):
    """uvicorn, around the life of the models: it listens while they load, and frees them when it has drained.

    The drain ends: what still runs after it gets an error event instead of a cut line.
    """

    def __init__(
        self,
        app: ASGIApp,
        registry: Registry,
        config: ServerConfig,
        on_ready: Callable[[], None],
        on_stop: Callable[[int], None] | None = None,
        batches: Batches | None = None,
    ) -> None:
        super().__init__(_uvicorn_config(app, config))
        self._on_stop = on_stop
        self._batches = batches
        self._registry = registry
        self._drain_s = config.drain_s
        self._on_ready = on_ready
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
        if self._on_stop is not None and self._loading.done():
            self._on_stop(len(self.server_state.tasks))
        if self._batches is not None:
            await self._batches.close()  # they continue at the next start
        self._registry.events.close()  # a client that follows the events waits for no answer
        cut = asyncio.ensure_future(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()
            self._loading.cancel()
            await asyncio.gather(cut, self._loading, return_exceptions=True)
            await self._registry.close()

    def check_loaded(self) -> None:
        """Raises the error of a failed load. Call it when the server has ended.

        Raises:
            StokerError: it has ended because a model could not be loaded.
        """
        if self._loading is not None and not self._loading.cancelled():
            self._loading.result()

    async def _load(self) -> None:
        is_loaded = False
        try:
            await self._registry.start()
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
