"""From the list of endpoints to Starlette's routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from stoker.server.access.control import check_admin
from stoker.server.fields import Endpoint
from stoker.server.observe.response_counts import ROUTE


def routes_of(endpoint: Endpoint, handler: Callable[[Request], Awaitable[Any]]) -> list[Route]:
    """An endpoint under all of its paths."""
    guarded = _guarded(endpoint, handler)
    return [Route(path, guarded, methods=[endpoint.method]) for path in endpoint.paths]


def _guarded(endpoint: Endpoint, handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    async def handle(request: Request) -> Any:
        request.scope.setdefault("state", {})[ROUTE] = endpoint.path
        if endpoint.is_admin:
            check_admin(request.scope)
        return await handler(request)

    return handle
