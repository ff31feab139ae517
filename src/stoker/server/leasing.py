"""Keeps a model loaded for as long as an HTTP request is being answered, and not a moment longer."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.errors import ModelNotLoaded
from stoker.runtime.registry import Lease, Registry, ServedModel
from stoker.server.access.control import may_administer
from stoker.server.request.adapters import check_named
from stoker.server.transport.connection import while_connected

_LEASES = "leases"
"""In a scope's state."""


async def leased(
    request: Request, registry: Registry, model: str | None, keep_alive_s: float | None = None
) -> ServedModel:
    """The model that answers, loaded first if need be. It stays until the whole response has been sent.

    Args:
        request: its body must have been read.
        registry: the models.
        model: as the request names it; None or empty = it names none.
        keep_alive_s: how long it stays afterwards; None = as before. Counts only from an administrator.

    Raises:
        Cancelled: the client left meanwhile.
        ModelNotFound: see `check_named`.
        StokerError: see `Registry.lease`.
    """
    if not may_administer(request.scope):
        keep_alive_s = None
    lease = registry.lease_loaded(model, keep_alive_s=keep_alive_s)
    if lease is None:
        lease = await while_connected(request.receive, registry.lease(model, keep_alive_s=keep_alive_s))
    request.scope["state"].setdefault(_LEASES, []).append(lease)
    check_named(model, lease.served, takes_any_name=registry.takes_any_name)
    return lease.served


def shared_lease(request: Request) -> Lease:
    """Another lease of the model that answers this request, for work that outlives the response."""
    leases: list[Lease] = request.scope["state"][_LEASES]
    return leases[-1].share()


def loaded(registry: Registry, model: str | None) -> ServedModel:
    """The model that a look at it means: nothing is loaded for that.

    Raises:
        ModelNotFound: there is none of that name.
        ModelNotLoaded: it is not loaded.
    """
    status = registry.resolve(model)
    if status.served is None:
        raise ModelNotLoaded(f"the model `{status.model_id}` is {status.state}; ask for it, or POST /models/load")
    return status.served


class LeaseBorder:
    """Wraps the application: the leases of an answer are given back when it has ended, in any way."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            leases: list[Lease] = scope.get("state", {}).pop(_LEASES, [])
            for lease in leases:
                lease.close()
