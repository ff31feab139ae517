"""Assembles routes and layers into one ASGI application. The handlers are in the folders of the APIs."""

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
from stoker.server.azure import AzurePaths
from stoker.server.batches.batches import BatchBorder, Batches
from stoker.server.batches.files import FileStore
from stoker.server.config import ServerConfig
from stoker.server.endpoints import AZURE_ENDPOINTS, OTHER_ENDPOINTS, ROUTERS
from stoker.server.errors import on_bug, on_http_error, on_stoker_error
from stoker.server.leasing import LeaseBorder
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.observe.tracing import Tracing
from stoker.server.remote_files.local import check_folder
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
    """The whole HTTP surface as an ASGI application. The caller loads and frees the models.

    Until the models are loaded, a request that needs one is answered with 503.

    Args:
        registry: the models.
        config: the settings of the server.
        spans: receives one tracing span per request; the caller shuts it down. None = no tracing.
        keys: API keys of the configuration, if they were read already: their file may be readable only once. None =
            they are read here.
        parts: values that endpoints share and would otherwise create, see `Server.part`.

    Raises:
        ConfigError: the API keys cannot be read, or `media_path` is not a directory.
    """
    check_folder(config.media_path)
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
    app = AzurePaths(app if spans is None else Tracing(app, spans), AZURE_ENDPOINTS, OTHER_ENDPOINTS)
    return RequestBorder(app, config, counts)


def open_batches(config: ServerConfig, concurrency: int) -> Batches | None:
    """Opens the files and batches of clients; None if the configuration names no folder for them.

    Args:
        config: `files_dir` and `files_mib` are used.
        concurrency: number of requests of batches that run at the same time.
    """
    if not config.files_dir:
        return None
    folder = files_dir() if config.files_dir == "auto" else Path(config.files_dir).expanduser()
    return Batches(FileStore(folder, config.files_mib), concurrency)
