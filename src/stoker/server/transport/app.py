"""Puts the routes together to one application; what they do is decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.observe.tracing import Tracing
from stoker.server.transport.middleware import RequestBorder

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_ROUTES = routes_of(ROUTERS)


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
    handlers = {StokerError: on_stoker_error, HTTPException: on_http_error, Exception: on_bug}
    starlette = Starlette(routes=_ROUTES, exception_handlers=handlers)
    starlette.state.server = Server(registry, config, [*parts, counts])
    starlette.router.redirect_slashes = False  # RequestBorder drops the last slash, so a redirect to it has no end
    app: ASGIApp = LeaseBorder(starlette)
    for part in parts:
        if isinstance(part, Batches):
            part.serve_with(RequestBorder(BatchBorder(app), config, ResponseCounts()))
    app = CrossOrigin(AccessControl(app, config, keys or ApiKeys(config)), config)
    return RequestBorder(app if spans is None else Tracing(app, spans), config, counts)


def open_batches(config: ServerConfig, concurrency: int) -> Batches | None:
    """The files and batches of clients, if the configuration names a folder for them.

    Args:
        config: the folder, and how much may lie in it.
        concurrency: requests of batches that run at the same time.
    """
    if not config.files_dir:
        return None
    folder = files_dir() if config.files_dir == "auto" else Path(config.files_dir).expanduser()
    return Batches(FileStore(folder, config.files_mib), concurrency)
