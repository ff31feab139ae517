"""Puts the routes together and runs them on uvicorn; what they do is decided elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from stoker.errors import ConfigError, StokerError
from stoker.runtime.registry import Registry
from stoker.server.config import ServerConfig
from stoker.server.errors import on_bug, on_http_error, on_stoker_error
from stoker.server.middleware import RequestBorder
from stoker.server.routes.health import HealthRoutes
from stoker.server.routes.models import ModelRoutes
from stoker.server.routes.openai import OpenAIRoutes

_CLOSING_S = 5
"""After the drain: how long ended requests get to write their last bytes."""


def create_app(registry: Registry, config: ServerConfig) -> ASGIApp:
    """The whole HTTP surface as an ASGI application. Its lifespan loads the models and frees them."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        try:
            await registry.start()
            yield
        finally:
            await registry.close()

    routes = [
        *OpenAIRoutes(registry, config).routes(),
        *ModelRoutes(registry).routes(),
        *HealthRoutes(registry).routes(),
    ]
    handlers = {StokerError: on_stoker_error, HTTPException: on_http_error, Exception: on_bug}
    return RequestBorder(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers))


def serve(registry: Registry, config: ServerConfig, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serves until SIGINT or SIGTERM, then lets running requests end for up to `drain_s`.

    Args:
        registry: the models; loaded here, and closed in every case.
        config: where to listen and all bounds.
        on_ready: called once with the base URL as soon as requests are answered.

    Raises:
        ConfigError: the address cannot be listened on.
        StokerError: a model cannot be loaded.
        KeyboardInterrupt: it was ended by SIGINT, after the drain.
    """
    with _bind(config) as listener:
        asyncio.run(_serve(registry, config, listener, on_ready))


async def _serve(
    registry: Registry, config: ServerConfig, listener: socket.socket, on_ready: Callable[[str], None]
) -> None:
    server = _Server(registry, config, lambda: on_ready(_url(config, listener)))
    try:
        await registry.start()  # before uvicorn, which would hide why it failed
        await server.serve(sockets=[listener])
    finally:
        await registry.close()


class _Server(uvicorn.Server):
    """uvicorn, with a drain that ends: what still runs after it gets an error event instead of a cut line."""

    def __init__(self, registry: Registry, config: ServerConfig, on_ready: Callable[[], None]) -> None:
        super().__init__(_uvicorn_config(registry, config))
        self._registry = registry
        self._drain_s = config.drain_s
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cut = asyncio.ensure_future(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()
            await asyncio.gather(cut, return_exceptions=True)

    async def _cut_off(self) -> None:
        await asyncio.sleep(self._drain_s)
        await self._registry.close()


def _uvicorn_config(registry: Registry, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(registry, config),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=config.idle_connection_s,
        timeout_graceful_shutdown=int(config.drain_s) + _CLOSING_S,
    )


def _bind(config: ServerConfig) -> socket.socket:
    """Takes the address before a model is loaded, so that a taken port costs no minute. It does not listen yet."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
    except (OSError, OverflowError) as error:
        listener.close()
        message = f"cannot listen on {config.host} port {config.port}: {error}"
        raise ConfigError(message, key="port") from error
    return listener


def _url(config: ServerConfig, listener: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{listener.getsockname()[1]}"
