"""Leases of models: a model stays loaded as long as an HTTP request that uses it is being answered."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.runtime.registry import Lease

LEASES = "leases"
"""Key in a scope's state: the list of leases that the request holds."""


class LeaseBorder:
    """ASGI layer around the application that closes the leases of a request when its response ends or fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            leases: list[Lease] = scope.get("state", {}).pop(LEASES, [])
            for lease in leases:
                lease.close()
