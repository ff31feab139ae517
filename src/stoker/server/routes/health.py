"""`GET /health`: can the served models answer now?"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stoker.errors import ModelNotLoaded
from stoker.runtime.base import Health
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.errors import ErrorDetail, error_body, json_response


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one model's engine."""

    id: str
    state: str
    num_restarts: int
    num_running: int | UnsetType = UNSET
    num_waiting: int | UnsetType = UNSET
    kv_used: int | UnsetType = UNSET
    kv_retained: int | UnsetType = UNSET
    kv_capacity: int | UnsetType = UNSET


class HealthReply(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is `ok`, or the state of the first model that is not ready."""

    status: str
    models: list[ModelHealth]
    error: ErrorDetail | UnsetType = UNSET


class HealthRoutes:
    """Probes for people and load balancers. No model is asked anything."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        return [Route("/health", self.health), Route("/v1/health", self.health)]

    async def health(self, _request: Request) -> Response:
        """200 if all models are ready, else 503."""
        healths = [(served, served.runtime.health()) for served in self._registry.models]
        models = [_model_health(served, health) for served, health in healths]
        ailing = next(((served, health) for served, health in healths if not health.is_ready), None)
        if ailing is None:
            return json_response(HealthReply(status="ok", models=models))
        reply = HealthReply(status=ailing[1].state, models=models, error=_error(*ailing))
        return json_response(reply, status=503, headers={"Retry-After": "1"})


def _error(served: ServedModel, health: Health) -> ErrorDetail:
    reason = f": {health.last_error}" if health.last_error else ""
    return error_body(ModelNotLoaded(f"the model {served.model_id} is {health.state}{reason}")).error


def _model_health(served: ServedModel, health: Health) -> ModelHealth:
    base = ModelHealth(id=served.model_id, state=health.state, num_restarts=health.num_restarts)
    if health.heartbeat is None:
        return base
    beat = health.heartbeat
    return msgspec.structs.replace(
        base,
        num_running=beat.num_running,
        num_waiting=beat.num_waiting,
        kv_used=beat.kv_used,
        kv_retained=beat.kv_retained,
        kv_capacity=beat.kv_capacity,
    )
