"""From the list of endpoints to Starlette's routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from stoker.server.wire.fields import Endpoint


def routes_of(endpoint: Endpoint, handler: Callable[[Request], Awaitable[Any]]) -> list[Route]:
    """An endpoint under all of its paths."""
    return [Route(path, handler, methods=[endpoint.method]) for path in endpoint.paths]
