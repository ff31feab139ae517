"""Leases of models: a model stays loaded as long as an HTTP request that uses it is being answered."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.errors import ModelNotLoaded
from stoker.runtime.registry import Lease, Registry, ServedModel
from stoker.server.access.control import may_administer
from stoker.server.request.adapters import check_named
from stoker.server.transport.connection import while_connected

_LEASES = "leases"
"""Key in a scope's state: the list of leases that the request holds."""


async def leased(
    request: Request, registry: Registry, model: str | None, keep_alive_s: float | None = None
) -> ServedModel:
    """The model that answers, loaded first if necessary. It stays loaded until the whole response has been sent.

    Args:
        request: the HTTP request, whose body must have been read.
        registry: the models.
        model: name of the model in the request; None or empty = the request names none.
        keep_alive_s: time for which the model stays loaded afterwards, in seconds; None = unchanged. Ignored unless the
            client may administer the server.

    Raises:
        Cancelled: the client disconnected while the model was loading.
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
    """A second lease of the model that answers this request, for work that outlives the response."""
    leases: list[Lease] = request.scope["state"][_LEASES]
    return leases[-1].share()


def loaded(registry: Registry, model: str | None) -> ServedModel:
    """The model of this name, for requests that only inspect it: they do not cause it to be loaded.

    Raises:
        ModelNotFound: no model has that name.
        ModelNotLoaded: the model is not loaded.
    """
    status = registry.resolve(model)
    if status.served is None:
        raise ModelNotLoaded(f"the model `{status.model_id}` is {status.state}; ask for it, or POST /models/load")
    return status.served


class LeaseBorder:
    """ASGI layer around the application that closes the leases of a request when its response ends or fails."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            leases: list[Lease] = scope.get("state", {}).pop(_LEASES, [])
            for lease in leases:
                lease.close()
